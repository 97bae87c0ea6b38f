//! What a client sends.

use std::io::Cursor;

use bytes::{Buf, Bytes, BytesMut};
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};

/// How much is read at once at least.
const READ: usize = 8 << 10;
/// How much room is made at once at most for a frame that has announced itself; its length is only a claim.
const MAX_READ: usize = 64 << 10;
/// The longest payload of a control frame (RFC 6455 §5.5).
const MAX_CONTROL: usize = 125;

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It breaks the rules of frames.
    #[error("{0}")]
    Protocol(&'static str),
    /// Text that is not UTF-8.
    #[error("a text is not UTF-8")]
    Utf8,
    /// A message over the limit.
    #[error("a message is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}

impl FrameError {
    /// The code to close the connection with (RFC 6455 §7.4.1).
    pub fn code(&self) -> CloseCode {
        match self {
            Self::Protocol(_) => CloseCode::Protocol,
            Self::Utf8 => CloseCode::Invalid,
            Self::TooLarge { .. } => CloseCode::Size,
        }
    }
}

/// What a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A whole message, whatever frames it came in. What was sent as text is UTF-8.
    Message(Bytes),
    /// A ping, to be answered with its payload.
    Ping(Bytes),
    /// A pong.
    Pong,
    /// The client closes, with this code if it gives one.
    Close(Option<CloseCode>),
}

/// A message whose last frame has not come.
#[derive(Debug)]
struct Partial {
    text: bool,
    bytes: BytesMut,
}

/// Takes bytes, gives messages. Give it what was read by [`FrameReader::room`]; then ask [`FrameReader::take`] until
/// there is nothing.
#[derive(Debug)]
pub struct FrameReader {
    limit: usize,
    pub(super) buffer: BytesMut,
    /// The frame that has begun, and the length of its payload.
    head: Option<(FrameHeader, usize)>,
    partial: Option<Partial>,
}

impl FrameReader {
    /// Messages of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, buffer: BytesMut::new(), head: None, partial: None }
    }

    /// Where to read to.
    pub fn room(&mut self) -> &mut BytesMut {
        let length = self.head.as_ref().map_or(0, |(_, length)| *length);
        let missing = length.saturating_sub(self.buffer.len());
        self.buffer.reserve(missing.clamp(READ, MAX_READ));
        &mut self.buffer
    }

    /// How many bytes are held that were not taken: of a message that has not ended, and of what stands behind it.
    pub fn held(&self) -> usize {
        self.buffer.len() + self.partial.as_ref().map_or(0, |partial| partial.bytes.len())
    }

    /// Lets go of memory that nothing is in.
    pub fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// The next message of what was read; `None` when more must be read for it.
    pub fn take(&mut self) -> Result<Option<Received>, FrameError> {
        loop {
            if self.head.is_none() {
                self.head = self.begin()?;
            }
            let Some((header, length)) = self.head.take_if(|head| head.1 <= self.buffer.len())
            else {
                return Ok(None);
            };
            let mut payload = self.buffer.split_to(length);
            if let Some(mask) = header.mask {
                unmask(&mut payload, mask);
            }
            if length > MAX_READ {
                // What stands behind a large message is not to keep its memory.
                self.buffer = BytesMut::from(&self.buffer[..]);
            }
            if let Some(received) = self.frame(&header, payload)? {
                return Ok(Some(received));
            }
        }
    }

    /// Reads the head of a frame, and refuses what can be refused by it.
    fn begin(&mut self) -> Result<Option<(FrameHeader, usize)>, FrameError> {
        let mut cursor = Cursor::new(&self.buffer[..]);
        let parsed = FrameHeader::parse(&mut cursor)
            .map_err(|_| FrameError::Protocol("a frame has a reserved opcode"))?;
        let read = cursor.position();
        let Some((header, length)) = parsed else { return Ok(None) };
        self.check(&header, length)?;
        self.buffer.advance(usize::try_from(read).unwrap_or_default());
        // Checked against the limit, which is a `usize`.
        Ok(Some((header, usize::try_from(length).unwrap_or(usize::MAX))))
    }

    fn check(&self, header: &FrameHeader, length: u64) -> Result<(), FrameError> {
        let broken = |text| Err(FrameError::Protocol(text));
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return broken("a reserved bit is set; no extension was agreed on");
        }
        if header.mask.is_none() {
            return broken("a frame of a client is not masked");
        }
        let before = match (header.opcode, &self.partial) {
            (OpCode::Control(_), _) if !header.is_final => {
                return broken("a control frame is fragmented");
            }
            (OpCode::Control(_), _) if length > MAX_CONTROL as u64 => {
                return broken("a control frame is longer than 125 bytes");
            }
            (OpCode::Control(_), _) => return Ok(()),
            (OpCode::Data(Data::Continue), None) => {
                return broken("a frame continues a message that has not begun");
            }
            (OpCode::Data(Data::Continue), Some(partial)) => partial.bytes.len(),
            (OpCode::Data(_), Some(_)) => {
                return broken("a message begins before the last one has ended");
            }
            (OpCode::Data(_), None) => 0,
        };
        if length > self.limit.saturating_sub(before) as u64 {
            return Err(FrameError::TooLarge { limit: self.limit });
        }
        Ok(())
    }

    /// What a whole frame gives.
    fn frame(
        &mut self,
        header: &FrameHeader,
        payload: BytesMut,
    ) -> Result<Option<Received>, FrameError> {
        let kind = match header.opcode {
            OpCode::Control(Control::Ping) => return Ok(Some(Received::Ping(payload.freeze()))),
            OpCode::Control(Control::Pong) => return Ok(Some(Received::Pong)),
            OpCode::Control(_) => return close(&payload).map(|code| Some(Received::Close(code))),
            OpCode::Data(kind) => kind,
        };
        let Partial { text, bytes } = match self.partial.take() {
            Some(mut partial) => {
                partial.bytes.extend_from_slice(&payload);
                partial
            }
            None => Partial { text: kind == Data::Text, bytes: payload },
        };
        if !header.is_final {
            self.partial = Some(Partial { text, bytes });
            return Ok(None);
        }
        if text && std::str::from_utf8(&bytes).is_err() {
            return Err(FrameError::Utf8);
        }
        Ok(Some(Received::Message(bytes.freeze())))
    }
}

/// The payload of a close frame: nothing, or a code and why (RFC 6455 §5.5.1).
fn close(payload: &[u8]) -> Result<Option<CloseCode>, FrameError> {
    let (code, reason) = match payload {
        [] => return Ok(None),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
        [_] => return Err(FrameError::Protocol("a close frame holds half a code")),
    };
    let code = CloseCode::from(code);
    if !code.is_allowed() {
        return Err(FrameError::Protocol("a close frame holds a code that may not be sent"));
    }
    match std::str::from_utf8(reason) {
        Ok(_) => Ok(Some(code)),
        Err(_) => Err(FrameError::Utf8),
    }
}

/// Takes the mask off (RFC 6455 §5.3), eight bytes at a time.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= key;
    }
}
