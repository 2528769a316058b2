"""Cannot be compiled."""
def forward(ctx, x:
