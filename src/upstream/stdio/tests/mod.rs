//! Tests of the room: the life of children, with `/bin/sh`.

mod life;
mod process;

use std::sync::Arc;
use std::time::Duration;

use super::super::duplex::tests::{call, context, context_for, result, until};
use super::super::link::LinkContext;
use super::super::{CallError, OutCall};
use crate::config::UpstreamConfig;
use crate::mcp::Era;
