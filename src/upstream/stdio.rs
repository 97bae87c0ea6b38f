//! Children on standard input and output.
