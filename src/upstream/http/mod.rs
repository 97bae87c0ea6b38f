//! Streamable HTTP and plain JSON-RPC over HTTP: connections, sessions, answers.
