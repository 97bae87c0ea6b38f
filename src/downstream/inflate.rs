//! Bodies that came compressed: inflated step by step, within the limit of what comes out.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::intake::Unread;

/// The codings that are taken, as `Accept-Encoding` names them.
pub(super) const TAKEN: &str = "gzip, deflate";
/// How much comes out of one step.
const STEP: usize = 32 << 10;
/// Steps after which others get their turn.
const STEPS: usize = 8;
/// How much larger than its content what does not shrink may become.
const OVERHEAD: usize = 64 << 10;

/// How a body is compressed (RFC 9110 §8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// `gzip`
    Gzip,
    /// `deflate`: with the frame of zlib, or without, as some clients send it.
    Deflate,
}

impl Coding {
    /// What the headers say; `None` for a body as it is.
    ///
    /// # Errors
    /// When it is another coding, or several on top of each other.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, ()> {
        let mut found = None;
        for header in headers.get_all(CONTENT_ENCODING) {
            let text = header.to_str().map_err(|_| ())?;
            for name in text.split(',').map(str::trim) {
                let coding = match name.to_ascii_lowercase().as_str() {
                    "" | "identity" => continue,
                    "gzip" | "x-gzip" => Self::Gzip,
                    "deflate" => Self::Deflate,
                    _ => return Err(()),
                };
                if found.replace(coding).is_some() {
                    return Err(());
                }
            }
        }
        Ok(found)
    }

    /// Most bytes that a body may have whose content has at most `limit`.
    pub(super) fn most(limit: usize) -> usize {
        limit.saturating_add(OVERHEAD)
    }
}

/// A body that is being inflated.
pub(super) struct Inflater {
    kind: Kind,
    limit: usize,
}

enum Kind {
    Gzip(Box<MultiGzDecoder<Bounded>>),
    /// Of `deflate`, before it is known whether it has a frame.
    Begin(Option<u8>),
    Deflate {
        state: Decompress,
        out: Bounded,
        ended: bool,
    },
}

impl Inflater {
    /// Takes at most `limit` bytes out.
    pub(super) fn new(coding: Coding, limit: usize) -> Self {
        let kind = match coding {
            Coding::Gzip => Kind::Gzip(Box::new(MultiGzDecoder::new(Bounded::new(limit)))),
            Coding::Deflate => Kind::Begin(None),
        };
        Self { kind, limit }
    }

    /// Inflates what came next, and lets others have their turn in between.
    pub(super) async fn push(&mut self, mut data: &[u8]) -> Result<(), Unread> {
        if let Kind::Begin(first) = self.kind {
            let (Some(one), two) =
                (first.or(data.first().copied()), data.get(usize::from(first.is_none())))
            else {
                return Ok(());
            };
            let Some(two) = two else {
                self.kind = Kind::Begin(Some(one));
                return Ok(());
            };
            // RFC 1950 §2.2: the method, and a checksum of both bytes.
            let framed = one & 0x0f == 8 && u16::from_be_bytes([one, *two]) % 31 == 0;
            let (state, out) = (Decompress::new(framed), Bounded::new(self.limit));
            self.kind = Kind::Deflate { state, out, ended: false };
            if first.is_some() {
                self.step(&[one])?;
            }
        }
        let mut steps = 0;
        while !data.is_empty() {
            let taken = self.step(data)?;
            data = &data[taken..];
            steps += 1;
            if steps % STEPS == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// One step; how much of the data it took.
    fn step(&mut self, data: &[u8]) -> Result<usize, Unread> {
        match &mut self.kind {
            Kind::Begin(_) => Ok(0),
            Kind::Gzip(decoder) => match decoder.write(data) {
                Ok(0) => Err(Unread::Broken),
                Ok(taken) => Ok(taken),
                Err(_) if decoder.get_ref().full => Err(Unread::TooLarge),
                Err(_) => Err(Unread::Broken),
            },
            Kind::Deflate { state, out, ended } => {
                if *ended {
                    // Something follows the end.
                    return Err(Unread::Broken);
                }
                let before = state.total_in();
                let mut step = Vec::with_capacity(STEP);
                let status = state.decompress_vec(data, &mut step, FlushDecompress::None);
                *ended = matches!(status.map_err(|_| Unread::Broken)?, Status::StreamEnd);
                out.write_all(&step).map_err(|_| Unread::TooLarge)?;
                let taken = usize::try_from(state.total_in() - before).unwrap_or(data.len());
                if taken == 0 && step.is_empty() && !*ended {
                    return Err(Unread::Broken);
                }
                Ok(taken)
            }
        }
    }

    /// How much has come out.
    pub(super) fn len(&self) -> usize {
        match &self.kind {
            Kind::Begin(_) => 0,
            Kind::Gzip(decoder) => decoder.get_ref().whole.len(),
            Kind::Deflate { out, .. } => out.whole.len(),
        }
    }

    /// The whole content; a body that ends too early is broken.
    pub(super) fn end(self) -> Result<Bytes, Unread> {
        match self.kind {
            Kind::Begin(_) => Err(Unread::Broken),
            Kind::Gzip(mut decoder) => match decoder.try_finish() {
                Ok(()) => Ok(std::mem::take(&mut decoder.get_mut().whole).into()),
                Err(_) if decoder.get_ref().full => Err(Unread::TooLarge),
                Err(_) => Err(Unread::Broken),
            },
            Kind::Deflate { mut state, mut out, mut ended } => {
                // What was taken in may not have come out yet.
                while !ended {
                    let mut step = Vec::with_capacity(STEP);
                    let status = state.decompress_vec(&[], &mut step, FlushDecompress::Finish);
                    ended = matches!(status.map_err(|_| Unread::Broken)?, Status::StreamEnd);
                    if step.is_empty() && !ended {
                        return Err(Unread::Broken);
                    }
                    out.write_all(&step).map_err(|_| Unread::TooLarge)?;
                }
                Ok(out.whole.into())
            }
        }
    }
}

/// Takes so much and no more.
struct Bounded {
    whole: Vec<u8>,
    limit: usize,
    /// More was to come than it takes.
    full: bool,
}

impl Bounded {
    fn new(limit: usize) -> Self {
        Self { whole: Vec::new(), limit, full: false }
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.whole.len() + bytes.len() > self.limit {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.whole.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn raw(text: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    async fn inflated(
        coding: Coding,
        body: &[u8],
        chunk: usize,
        limit: usize,
    ) -> Result<Bytes, Unread> {
        let mut inflater = Inflater::new(coding, limit);
        for part in body.chunks(chunk) {
            inflater.push(part).await?;
        }
        inflater.end()
    }

    #[tokio::test]
    async fn every_coding_comes_out_as_it_went_in_however_it_is_cut() {
        let text: Vec<u8> = (0..200_000_u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
        let two = [gzip(&text[..1000]), gzip(&text[1000..])].concat();
        for (coding, body) in [
            (Coding::Gzip, gzip(&text)),
            (Coding::Gzip, two),
            (Coding::Deflate, zlib(&text)),
            (Coding::Deflate, raw(&text)),
        ] {
            for chunk in [1, 7, 4096, body.len()] {
                let whole = inflated(coding, &body, chunk, text.len()).await.unwrap();
                assert!(whole == text, "{coding:?} in chunks of {chunk}");
            }
            let over = inflated(coding, &body, 4096, text.len() - 1).await;
            assert_eq!(over, Err(Unread::TooLarge), "{coding:?}");
            let cut = inflated(coding, &body[..body.len() - 1], 4096, text.len()).await;
            assert_eq!(cut, Err(Unread::Broken), "{coding:?} cut short");
            let more = inflated(coding, &[&body[..], b"x"].concat(), 4096, text.len()).await;
            assert_eq!(more, Err(Unread::Broken), "{coding:?} and more");
        }
        for coding in [Coding::Gzip, Coding::Deflate] {
            assert_eq!(inflated(coding, b"", 1, 9).await, Err(Unread::Broken));
            assert_eq!(inflated(coding, b"{}", 1, 9).await, Err(Unread::Broken));
        }
    }

    #[tokio::test]
    async fn a_bomb_is_left_alone_once_the_limit_is_reached() {
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        let mut inflater = Inflater::new(Coding::Gzip, 1 << 20);
        assert_eq!(inflater.push(&bomb).await, Err(Unread::TooLarge));
        let Kind::Gzip(decoder) = &inflater.kind else { panic!("it is gzip") };
        assert!(decoder.get_ref().whole.len() <= 1 << 20);
    }

    #[test]
    fn codings_are_told_by_name_and_only_one_is_taken() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, http::HeaderValue::from_static(value));
            }
            Coding::of(&headers)
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["identity, "]), Ok(None));
        assert_eq!(of(&["GZIP"]), Ok(Some(Coding::Gzip)));
        assert_eq!(of(&["identity", "deflate"]), Ok(Some(Coding::Deflate)));
        for refused in [&["br"][..], &["gzip, gzip"], &["gzip", "deflate"], &["zstd"]] {
            assert_eq!(of(refused), Err(()), "{refused:?}");
        }
    }
}
