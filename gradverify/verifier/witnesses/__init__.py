"""What knows a gradient without backward: values, derived, reference; and the judge between them and a claim."""
