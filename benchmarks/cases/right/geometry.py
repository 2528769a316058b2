"""Rotations, hyperbolic space, meshes, splats and molecules."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def unbroadcast(grad, shape):
    """Sum a gradient down to the shape of what was broadcast."""
    extra = grad.dim() - len(shape)
    if extra:
        grad = grad.sum(tuple(range(extra)))
    dims = tuple(i for i, n in enumerate(shape) if n == 1 and grad.size(i) != 1)
    return grad.sum(dims, keepdim=True) if dims else grad


def hamilton(p, q):
    a, b, c, d = p.unbind(-1)
    e, f, g, h = q.unbind(-1)
    return torch.stack(
        [a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g,
         a * g - b * h + c * e + d * f, a * h + b * g - c * f + d * e], -1,
    )  # fmt: skip


def conjugate(q):
    return q * q.new_tensor([1.0, -1.0, -1.0, -1.0])


class QuaternionProduct(Function):
    @staticmethod
    def forward(ctx, p, q):
        ctx.save_for_backward(p, q)
        return hamilton(p, q)

    @staticmethod
    def backward(ctx, g):
        p, q = ctx.saved_tensors
        dp = dq = None
        if ctx.needs_input_grad[0]:
            dp = unbroadcast(hamilton(g, conjugate(q)), p.shape)
        if ctx.needs_input_grad[1]:
            dq = unbroadcast(hamilton(conjugate(p), g), q.shape)
        return dp, dq


class RotateByQuaternion(Function):
    """Normalises q, then rotates v by it."""

    @staticmethod
    def forward(ctx, q, v):
        norm = q.norm(dim=-1, keepdim=True)
        n = q / norm
        w, u = n[..., :1], n[..., 1:]
        t = 2 * torch.cross(u, v, dim=-1)
        ctx.save_for_backward(n, norm, v, t)
        return v + w * t + torch.cross(u, t, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        n, norm, v, t = ctx.saved_tensors
        w, u = n[..., :1], n[..., 1:]
        dw = (g * t).sum(-1, keepdim=True)
        dt = w * g + torch.cross(g, u, dim=-1)
        du = torch.cross(t, g, dim=-1) + 2 * torch.cross(v, dt, dim=-1)
        dv = g + 2 * torch.cross(dt, u, dim=-1)
        dn = torch.cat([dw, du], -1)
        dq = (dn - n * (dn * n).sum(-1, keepdim=True)) / norm
        return dq, dv


class PoincareDistance(Function):
    @staticmethod
    def forward(ctx, x, y):
        xx, yy = (x * x).sum(-1), (y * y).sum(-1)
        d = x - y
        dd = (d * d).sum(-1)
        gamma = 1 + 2 * dd / ((1 - xx) * (1 - yy))
        ctx.save_for_backward(x, y)
        return torch.acosh(gamma)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        xx, yy = (x * x).sum(-1), (y * y).sum(-1)
        d = x - y
        dd = (d * d).sum(-1)
        gamma = 1 + 2 * dd / ((1 - xx) * (1 - yy))
        d_gamma = g / (gamma * gamma - 1).sqrt()
        common = 4 / ((1 - xx) * (1 - yy)) * d_gamma
        dx = common.unsqueeze(-1) * (d + x * (dd / (1 - xx)).unsqueeze(-1))
        dy = common.unsqueeze(-1) * (-d + y * (dd / (1 - yy)).unsqueeze(-1))
        return dx, dy


class MobiusAdd(Function):
    """Addition on the Poincaré ball of curvature -c, c being learned as well."""

    @staticmethod
    def forward(ctx, x, y, c):
        xy = (x * y).sum(-1, keepdim=True)
        xx = (x * x).sum(-1, keepdim=True)
        yy = (y * y).sum(-1, keepdim=True)
        a, b = 1 + 2 * c * xy + c * yy, 1 - c * xx
        den = 1 + 2 * c * xy + c * c * xx * yy
        out = (a * x + b * y) / den
        ctx.save_for_backward(x, y, c, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y, c, out = ctx.saved_tensors
        xy = (x * y).sum(-1, keepdim=True)
        xx = (x * x).sum(-1, keepdim=True)
        yy = (y * y).sum(-1, keepdim=True)
        a, b = 1 + 2 * c * xy + c * yy, 1 - c * xx
        den = 1 + 2 * c * xy + c * c * xx * yy
        g = g / den
        gx, gy = (g * x).sum(-1, keepdim=True), (g * y).sum(-1, keepdim=True)
        d_den = -(g * out).sum(-1, keepdim=True)
        d_xy = 2 * c * gx + 2 * c * d_den
        d_xx = -c * gy + c * c * yy * d_den
        d_yy = c * gx + c * c * xx * d_den
        d_c = gx * (2 * xy + yy) - gy * xx + d_den * (2 * xy + 2 * c * xx * yy)
        return a * g + d_xy * y + 2 * d_xx * x, b * g + d_xy * x + 2 * d_yy * y, d_c.sum().reshape(c.shape)


class LorentzExp(Function):
    """Exponential map at the origin of the hyperboloid: (cosh r, sinh r · v / r)."""

    @staticmethod
    def forward(ctx, v):
        r = v.norm(dim=-1, keepdim=True)
        small = r < 1e-4
        safe = torch.where(small, torch.ones_like(r), r)
        shc = torch.where(small, 1 + r * r / 6, torch.sinh(safe) / safe)
        ctx.save_for_backward(v, r, shc)
        return torch.cat([torch.cosh(r), shc * v], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        v, r, shc = ctx.saved_tensors
        small = r < 1e-2
        safe = torch.where(small, torch.ones_like(r), r)
        # d(sinh r / r)/dr / r; its series near zero
        slope = torch.where(
            small,
            1 / 3 + r**2 / 30 + r**4 / 840 + r**6 / 45360,
            (safe * torch.cosh(safe) - torch.sinh(safe)) / safe**3,
        )
        g0, gv = g[..., :1], g[..., 1:]
        return g0 * shc * v + gv * shc + v * slope * (gv * v).sum(-1, keepdim=True)


class InterpolateAttributes(Function):
    """Attributes of a mesh's vertices at pixels: barycentric weights of the triangle that each pixel sees."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        attributes, bary, faces, seen = inputs
        ctx.save_for_backward(attributes, bary, faces, seen)

    @staticmethod
    def forward(attributes, bary, faces, seen):
        corners = attributes[faces[seen.clamp(min=0)]]
        out = (corners * bary.unsqueeze(-1)).sum(-2)
        return out * (seen >= 0).unsqueeze(-1)

    @staticmethod
    def backward(ctx, g):
        attributes, bary, faces, seen = ctx.saved_tensors
        g = g * (seen >= 0).unsqueeze(-1)
        corner = faces[seen.clamp(min=0)]
        d_attributes = d_bary = None
        if ctx.needs_input_grad[0]:
            per_corner = bary.unsqueeze(-1) * g.unsqueeze(-2)
            flat = per_corner.reshape(-1, g.size(-1))
            d_attributes = torch.zeros_like(attributes).index_add(0, corner.reshape(-1), flat)
        if ctx.needs_input_grad[1]:
            d_bary = (attributes[corner] * g.unsqueeze(-2)).sum(-1)
        return d_attributes, d_bary, None, None


class ProjectPoints(Function):
    """Pinhole projection with pose and focal lengths; pixels and depths."""

    @staticmethod
    def forward(ctx, points, rotation, translation, focal):
        camera = points @ rotation.T + translation
        depth = camera[:, 2]
        pixels = focal * camera[:, :2] / depth.unsqueeze(1)
        ctx.save_for_backward(points, rotation, focal, camera)
        ctx.set_materialize_grads(False)
        return pixels, depth

    @staticmethod
    @once_differentiable
    def backward(ctx, d_pixels, d_depth):
        points, rotation, focal, camera = ctx.saved_tensors
        d_camera = torch.zeros_like(camera)
        d_focal = torch.zeros_like(focal)
        if d_pixels is not None:
            z = camera[:, 2:]
            d_camera[:, :2] = d_pixels * focal / z
            d_camera[:, 2] -= (d_pixels * focal * camera[:, :2] / z**2).sum(1)
            d_focal = (d_pixels * camera[:, :2] / z).sum(0)
        if d_depth is not None:
            d_camera[:, 2] += d_depth
        return d_camera @ rotation, d_camera.T @ points, d_camera.sum(0), d_focal


def rotation_of(q):
    w, x, y, z = q.unbind(-1)
    return torch.stack(
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
         2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
         2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1,
    ).reshape(*q.shape[:-1], 3, 3)  # fmt: skip


class SplatCovariance(Function):
    """Σ = M Mᵀ, M = R(q / |q|) diag(exp(log_scale)): the covariance of a Gaussian splat."""

    @staticmethod
    def forward(ctx, quaternion, log_scale):
        scale = log_scale.exp()
        norm = quaternion.norm(dim=-1, keepdim=True)
        unit = quaternion / norm
        m = rotation_of(unit) * scale.unsqueeze(-2)
        ctx.save_for_backward(unit, norm, scale, m)
        return m @ m.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        unit, norm, scale, m = ctx.saved_tensors
        dm = (g + g.mT) @ m
        rotation = rotation_of(unit)
        d_scale = (dm * rotation).sum(-2)
        d = dm * scale.unsqueeze(-2)
        w, x, y, z = unit.unbind(-1)
        dw = 2 * (
            x * (d[..., 2, 1] - d[..., 1, 2])
            + y * (d[..., 0, 2] - d[..., 2, 0])
            + z * (d[..., 1, 0] - d[..., 0, 1])
        )
        dx = 2 * (
            -2 * x * (d[..., 1, 1] + d[..., 2, 2]) + y * (d[..., 0, 1] + d[..., 1, 0])
            + z * (d[..., 0, 2] + d[..., 2, 0]) + w * (d[..., 2, 1] - d[..., 1, 2])
        )  # fmt: skip
        dy = 2 * (
            x * (d[..., 0, 1] + d[..., 1, 0]) - 2 * y * (d[..., 0, 0] + d[..., 2, 2])
            + z * (d[..., 1, 2] + d[..., 2, 1]) + w * (d[..., 0, 2] - d[..., 2, 0])
        )  # fmt: skip
        dz = 2 * (
            x * (d[..., 0, 2] + d[..., 2, 0]) + y * (d[..., 1, 2] + d[..., 2, 1])
            - 2 * z * (d[..., 0, 0] + d[..., 1, 1]) + w * (d[..., 1, 0] - d[..., 0, 1])
        )  # fmt: skip
        du = torch.stack([dw, dx, dy, dz], -1)
        dq = (du - unit * (du * unit).sum(-1, keepdim=True)) / norm
        return dq, d_scale * scale


class SphericalHarmonics(Function):
    """Colours from real spherical harmonics up to `degree` (0 to 2) along unit directions."""

    C0, C1 = 0.28209479177387814, 0.4886025119029199
    C2 = (
        1.0925484305920792,
        -1.0925484305920792,
        0.31539156525252005,
        -1.0925484305920792,
        0.5462742152960396,
    )

    @classmethod
    def basis(cls, d, degree):
        x, y, z = d.unbind(-1)
        terms = [torch.full_like(x, cls.C0)]
        if degree > 0:
            terms += [-cls.C1 * y, cls.C1 * z, -cls.C1 * x]
        if degree > 1:
            a, b, c, e, f = cls.C2
            terms += [a * x * y, b * y * z, c * (2 * z * z - x * x - y * y), e * x * z, f * (x * x - y * y)]
        return torch.stack(terms, -1)

    @staticmethod
    def forward(ctx, directions, coefficients, degree):
        n = (degree + 1) ** 2
        ctx.save_for_backward(directions, coefficients)
        ctx.degree = degree
        weights = SphericalHarmonics.basis(directions, degree)
        return torch.einsum("nk,nkc->nc", weights, coefficients[:, :n])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        directions, coefficients = ctx.saved_tensors
        cls, n = SphericalHarmonics, (ctx.degree + 1) ** 2
        d_coefficients = torch.zeros_like(coefficients)
        d_coefficients[:, :n] = torch.einsum("nk,nc->nkc", cls.basis(directions, ctx.degree), g)
        s = torch.einsum("nkc,nc->nk", coefficients, g)
        x, y, z = directions.unbind(-1)
        dx, dy, dz = torch.zeros_like(x), torch.zeros_like(y), torch.zeros_like(z)
        if ctx.degree > 0:
            dx, dy, dz = dx - cls.C1 * s[:, 3], dy - cls.C1 * s[:, 1], dz + cls.C1 * s[:, 2]
        if ctx.degree > 1:
            a, b, c, e, f = cls.C2
            dx = dx + a * y * s[:, 4] - 2 * c * x * s[:, 6] + e * z * s[:, 7] + 2 * f * x * s[:, 8]
            dy = dy + a * x * s[:, 4] + b * z * s[:, 5] - 2 * c * y * s[:, 6] - 2 * f * y * s[:, 8]
            dz = dz + b * y * s[:, 5] + 4 * c * z * s[:, 6] + e * x * s[:, 7]
        return torch.stack([dx, dy, dz], -1), d_coefficients, None


class BackwardWarp(Function):
    """Samples an image at pixel + flow, bilinearly; outside it is zero or the border's value."""

    @staticmethod
    def corners(x, y, h, w, border):
        x0, y0 = x.floor().long(), y.floor().long()
        for dy in (0, 1):
            for dx in (0, 1):
                xi, yi = x0 + dx, y0 + dy
                inside = torch.ones_like(xi, dtype=torch.bool)
                if not border:
                    inside = (xi >= 0) & (xi < w) & (yi >= 0) & (yi < h)
                yield dx, dy, xi.clamp(0, w - 1), yi.clamp(0, h - 1), inside

    @staticmethod
    def forward(ctx, image, flow, padding="zeros"):
        c, h, w = image.shape
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        x, y = columns + flow[0], rows + flow[1]
        fx, fy = x - x.floor(), y - y.floor()
        out = torch.zeros_like(image)
        for dx, dy, xi, yi, inside in BackwardWarp.corners(x, y, h, w, padding == "border"):
            weight = (fx if dx else 1 - fx) * (fy if dy else 1 - fy) * inside
            out = out + image[:, yi, xi] * weight
        ctx.save_for_backward(image, x, y)
        ctx.border = padding == "border"
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        image, x, y = ctx.saved_tensors
        c, h, w = image.shape
        fx, fy = x - x.floor(), y - y.floor()
        d_image = image.new_zeros(c, h * w)
        d_flow = torch.zeros(2, h, w, dtype=image.dtype)
        for dx, dy, xi, yi, inside in BackwardWarp.corners(x, y, h, w, ctx.border):
            wx, wy = (fx if dx else 1 - fx), (fy if dy else 1 - fy)
            d_image.index_add_(1, (yi * w + xi).reshape(-1), (g * wx * wy * inside).reshape(c, -1))
            along = (g * image[:, yi, xi]).sum(0) * inside
            d_flow[0] += (1 if dx else -1) * wy * along
            d_flow[1] += (1 if dy else -1) * wx * along
        return d_image.view(c, h, w), d_flow, None


class MinkowskiDistances(Function):
    """All distances Σ|a - b|^p)^(1/p) between the rows of two matrices."""

    @staticmethod
    def forward(ctx, a, b, p):
        diff = a.unsqueeze(1) - b.unsqueeze(0)
        out = diff.abs().pow(p).sum(-1).pow(1 / p)
        ctx.save_for_backward(a, b, out)
        ctx.p = p
        return out

    @staticmethod
    def backward(ctx, g):
        a, b, out = ctx.saved_tensors
        diff = a.unsqueeze(1) - b.unsqueeze(0)
        weight = diff.sign() * diff.abs().pow(ctx.p - 1) * (g * out.pow(1 - ctx.p)).unsqueeze(-1)
        return weight.sum(1), -weight.sum(0), None


class LennardJones(Function):
    """Energy and forces of listed pairs; the forces carry a gradient of their own."""

    @staticmethod
    def pair_terms(r2, sigma, epsilon):
        s6 = sigma**6 / r2**3
        e = 4 * epsilon * (s6 * s6 - s6)
        first = 4 * epsilon * (-6 * s6 * s6 + 3 * s6) / r2
        second = 4 * epsilon * (42 * s6 * s6 - 12 * s6) / r2**2
        return e, first, second

    @staticmethod
    def forward(ctx, positions, pairs, sigma=1.0, epsilon=0.5):
        i, j = pairs
        d = positions[i] - positions[j]
        e, first, _ = LennardJones.pair_terms((d * d).sum(-1), sigma, epsilon)
        pull = 2 * first.unsqueeze(-1) * d
        forces = torch.zeros_like(positions).index_add(0, i, -pull).index_add(0, j, pull)
        ctx.save_for_backward(positions, pairs, forces)
        ctx.sigma, ctx.epsilon = sigma, epsilon
        return e.sum(), forces

    @staticmethod
    @once_differentiable
    def backward(ctx, d_energy, d_forces):
        positions, pairs, forces = ctx.saved_tensors
        i, j = pairs
        d = positions[i] - positions[j]
        _, first, second = LennardJones.pair_terms((d * d).sum(-1), ctx.sigma, ctx.epsilon)
        relative = d_forces[j] - d_forces[i]
        back = 2 * first.unsqueeze(-1) * relative + 4 * (second * (relative * d).sum(-1)).unsqueeze(-1) * d
        grad = -forces * d_energy
        return grad.index_add(0, i, back).index_add(0, j, -back), None, None, None


class Kabsch(Function):
    """Root mean square distance of two point sets after the best rotation."""

    @staticmethod
    def forward(ctx, p, q):
        pc, qc = p - p.mean(0), q - q.mean(0)
        u, _, vh = torch.linalg.svd(pc.T @ qc)
        sign = torch.sign(torch.linalg.det(u @ vh))
        flip = torch.diag(torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign]))
        rotation = u @ flip @ vh
        rest = pc @ rotation - qc
        rmsd = (rest.square().sum() / p.size(0)).sqrt()
        ctx.save_for_backward(rest, rotation, rmsd)
        return rmsd

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        rest, rotation, rmsd = ctx.saved_tensors
        scaled = g * rest / (rest.size(0) * rmsd)
        return scaled @ rotation.T, -scaled


def molecule(generator, device, dtype, *, n):
    grid = torch.stack([torch.arange(n), torch.arange(n) % 2, torch.arange(n) % 3], -1).to(dtype)
    positions = grid * 1.1 + 0.2 * torch.rand(n, 3, generator=generator, dtype=dtype)
    return positions.requires_grad_(), torch.triu_indices(n, n, 1), 1.0, 0.5
