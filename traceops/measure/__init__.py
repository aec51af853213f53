"""One question a module: measure turns columns into numbers, judge turns numbers into findings."""
