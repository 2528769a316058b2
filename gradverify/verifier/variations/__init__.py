"""What must leave a verified gradient as it is: layouts, calls, writes, transforms, devices."""
