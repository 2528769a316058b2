"""Spec files: YAML → cases, with file, line and column for everything that is wrong.

Two stages. *Reading* (`read.read_spec`, `find.SpecLookup`) imports nothing: syntax, keys, types, sizes, names
of targets. *Binding* (`binding.check_against_targets`) compares inputs with live targets. Both
give `Mistake` values, all of a stage at once. `plan.plan_function` then turns an entry into a plan.
"""
