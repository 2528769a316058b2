"""Cannot be imported."""
import numpi
