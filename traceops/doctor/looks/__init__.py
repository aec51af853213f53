"""What the doctor looks at: each module reads one part of a machine and says what is wrong with it."""
