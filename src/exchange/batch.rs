//! Putting the answers of a batch together, in the order of its requests.

use bytes::{BufMut, Bytes, BytesMut};

use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Chunks, Id, NullId, error_response};

/// The answers of one batch by position.
#[derive(Debug)]
pub struct Assembly {
    slots: Vec<Slot>,
    bytes: usize,
    max_bytes: usize,
    null_id: NullId,
}

#[derive(Debug)]
enum Slot {
    /// An answer is owed to this id.
    Waiting(Option<Id>),
    /// The answer.
    Filled(Chunks),
    /// A notification: nothing is owed.
    Silent,
}

impl Assembly {
    /// For a batch whose whole answer may have `max_bytes`.
    pub fn new(max_bytes: usize, null_id: NullId) -> Self {
        Self { slots: Vec::new(), bytes: 0, max_bytes, null_id }
    }

    /// The next element expects an answer under `id` (`None`: its id could not be read).
    pub fn expect(&mut self, id: Option<Id>) -> usize {
        self.slots.push(Slot::Waiting(id));
        self.slots.len() - 1
    }

    /// The next element is a notification.
    pub fn silent(&mut self) -> usize {
        self.slots.push(Slot::Silent);
        self.slots.len() - 1
    }

    /// Element `index` was answered. An answer that would pass the byte limit becomes an error of its own;
    /// a second answer for one element falls away.
    pub fn fill(&mut self, index: usize, answer: Chunks) {
        let Some(Slot::Waiting(id)) = self.slots.get(index) else { return };
        let answer = if self.bytes + answer.len() > self.max_bytes {
            let fault = Fault::new(
                Reason::MessageTooLarge,
                format!("the answers of the batch are larger than {} bytes", self.max_bytes),
            );
            Chunks::from(error_response(id.as_ref(), &fault.to_error(), self.null_id))
        } else {
            answer
        };
        self.bytes += answer.len();
        self.slots[index] = Slot::Filled(answer);
    }

    /// Element `index` is owed nothing any more (cancelled).
    pub fn forget(&mut self, index: usize) {
        if let Some(slot @ Slot::Waiting(_)) = self.slots.get_mut(index) {
            *slot = Slot::Silent;
        }
    }

    /// Gives every element that has no answer yet this one.
    pub fn fill_rest(&mut self, fault: &Fault) {
        let error = fault.to_error();
        for slot in &mut self.slots {
            if let Slot::Waiting(id) = slot {
                let answer = error_response(id.as_ref(), &error, self.null_id);
                *slot = Slot::Filled(Chunks::from(answer));
            }
        }
    }

    /// The array, or `None` when nothing is owed (all notifications).
    pub fn finish(self) -> Option<Bytes> {
        let mut out = BytesMut::with_capacity(self.bytes + self.slots.len() + 2);
        for slot in self.slots {
            let Slot::Filled(answer) = slot else { continue };
            out.put_u8(if out.is_empty() { b'[' } else { b',' });
            for slice in answer.slices() {
                out.put_slice(slice);
            }
        }
        if out.is_empty() {
            return None;
        }
        out.put_u8(b']');
        Some(out.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &'static str) -> Chunks {
        Chunks::from(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn answers_stand_in_request_order_without_notifications() {
        let mut assembly = Assembly::new(1000, NullId::Null);
        let first = assembly.expect(Some(Id::from_number(1)));
        assembly.silent();
        let last = assembly.expect(Some(Id::from_number(2)));
        assembly.fill(last, text("B"));
        assembly.fill(first, text("A"));
        assembly.fill(first, text("again"));
        assert_eq!(assembly.finish().unwrap(), "[A,B]");
    }

    #[test]
    fn only_notifications_give_no_body() {
        let mut assembly = Assembly::new(1000, NullId::Null);
        assembly.silent();
        assert_eq!(assembly.finish(), None);
    }

    #[test]
    fn answers_over_the_byte_limit_become_errors_and_the_finished_ones_stay() {
        let mut assembly = Assembly::new(5, NullId::Null);
        let first = assembly.expect(Some(Id::from_number(1)));
        let second = assembly.expect(Some(Id::from_number(2)));
        assembly.fill(first, text("AAAA"));
        assembly.fill(second, text("BBBB"));
        let body = assembly.finish().unwrap();
        let body = std::str::from_utf8(&body).unwrap();
        assert!(body.starts_with("[AAAA,{"), "{body}");
        assert!(body.contains("-31010") && body.contains("\"id\":2"), "{body}");
    }

    #[test]
    fn the_deadline_keeps_what_is_finished() {
        let mut assembly = Assembly::new(1000, NullId::Null);
        let first = assembly.expect(Some(Id::from_number(1)));
        assembly.expect(Some(Id::from_number(2)));
        assembly.fill(first, text("A"));
        assembly.fill_rest(&Fault::new(Reason::UpstreamTimeout, "the batch took too long"));
        let body = assembly.finish().unwrap();
        let body = std::str::from_utf8(&body).unwrap();
        assert!(body.starts_with("[A,{"), "{body}");
        assert!(body.contains("-31003") && body.contains("\"id\":2"), "{body}");
    }
}
