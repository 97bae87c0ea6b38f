//! What goes to a client. A server's frames are not masked.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};

use crate::jsonrpc::Chunks;

/// Slices up to this length are copied together; longer ones are written from where they are.
const COPIED: usize = 4 << 10;
/// The longest head of a frame that is not masked.
const MAX_HEAD: usize = 10;
/// The longest reason that a close frame can hold beside its code.
const MAX_REASON: usize = 123;

/// Takes messages, gives bytes.
#[derive(Debug, Default)]
pub struct FrameWriter {
    /// In order; `tail` comes last.
    pub(super) queue: VecDeque<Bytes>,
    pub(super) tail: BytesMut,
    bytes: usize,
}

impl FrameWriter {
    /// Adds a text message.
    pub fn message(&mut self, text: &Chunks) {
        self.head(OpCode::Data(Data::Text), text.len());
        for slice in text.slices() {
            self.bytes += slice.len();
            if slice.len() <= COPIED {
                self.tail.extend_from_slice(slice);
            } else {
                self.queue.extend([self.tail.split().freeze(), slice.clone()]);
            }
        }
    }

    /// Adds a ping without payload.
    pub fn ping(&mut self) {
        self.head(OpCode::Control(Control::Ping), 0);
    }

    /// Adds the answer to a ping.
    pub fn pong(&mut self, payload: &[u8]) {
        self.head(OpCode::Control(Control::Pong), payload.len());
        self.add(payload);
    }

    /// Adds the last frame. A code that says that there is none makes an empty one.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        if code == CloseCode::Status {
            return self.head(OpCode::Control(Control::Close), 0);
        }
        let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
        self.head(OpCode::Control(Control::Close), 2 + reason.len());
        self.add(&u16::from(code).to_be_bytes());
        self.add(reason.as_bytes());
    }

    fn head(&mut self, opcode: OpCode, length: usize) {
        let header = FrameHeader { opcode, ..FrameHeader::default() };
        self.tail.reserve(MAX_HEAD + length.min(COPIED));
        let before = self.tail.len();
        // Writing to memory does not fail.
        let _ = header.format(length as u64, &mut (&mut self.tail).writer());
        self.bytes += self.tail.len() - before;
    }

    fn add(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.bytes += bytes.len();
    }

    /// How many bytes wait.
    pub fn pending(&self) -> usize {
        self.bytes
    }

    /// What to write next: as many slices as there are and fit.
    pub fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let waiting = self.queue.iter().map(|slice| &slice[..]).chain([&self.tail[..]]);
        let mut count = 0;
        for (place, slice) in into.iter_mut().zip(waiting.filter(|slice| !slice.is_empty())) {
            *place = IoSlice::new(slice);
            count += 1;
        }
        count
    }

    /// So many bytes were written.
    pub fn written(&mut self, mut count: usize) {
        self.bytes -= count;
        while let Some(first) = self.queue.front_mut() {
            if count < first.len() {
                return first.advance(count);
            }
            count -= first.len();
            self.queue.pop_front();
        }
        self.tail.advance(count);
        if self.bytes == 0 {
            // An idle connection keeps nothing.
            *self = Self::default();
        }
    }
}
