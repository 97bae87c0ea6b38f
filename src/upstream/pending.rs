//! Calls that wait for an answer on one connection, by the id that we minted.
