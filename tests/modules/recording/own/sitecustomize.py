import os

os.environ["OWN"] = "chained"
