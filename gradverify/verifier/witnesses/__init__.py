"""What knows a gradient without backward: values and derived; and the judge between them and a claim."""
