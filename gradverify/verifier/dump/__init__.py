"""`--dump`: a finding as a tensor file and a script of plain torch that shows it without gradverify."""
