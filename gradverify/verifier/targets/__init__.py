"""What a module defines, and how each kind of it is called."""
