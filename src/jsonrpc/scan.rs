//! The strict one-pass scanner.
