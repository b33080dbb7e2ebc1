//! What is kept of an output: its head and its tail, within a cap.

/// Bytes kept of one stream.
#[derive(Debug)]
pub(super) struct Capture {
    cap: usize,
    head: Vec<u8>,
    tail: Vec<u8>,
    /// Where the oldest byte of a full tail is.
    at: usize,
    total: u64,
}

/// What was kept in the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// The head, directly followed by the tail.
    pub bytes: Vec<u8>,
    /// How much of it is the head.
    pub head: usize,
    /// How many bytes between the two are lost.
    pub dropped: u64,
}

impl Capture {
    /// Keeps `cap` bytes at most: the first half, and the last.
    #[must_use]
    pub(super) const fn new(cap: usize) -> Self {
        Self {
            cap,
            head: Vec::new(),
            tail: Vec::new(),
            at: 0,
            total: 0,
        }
    }

    /// How many bytes there were.
    #[must_use]
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// Adds what was read.
    pub(super) fn push(&mut self, mut data: &[u8]) {
        self.total += data.len() as u64;
        let room = self.cap - self.cap / 2 - self.head.len();
        let (first, rest) = data.split_at(room.min(data.len()));
        self.head.extend_from_slice(first);
        data = rest;
        let size = self.cap / 2;
        if data.len() > size {
            // Only the end of it can stay.
            data = &data[data.len() - size..];
        }
        let room = size - self.tail.len();
        let (first, rest) = data.split_at(room.min(data.len()));
        self.tail.extend_from_slice(first);
        if rest.is_empty() {
            return;
        }
        let (right, left) = rest.split_at(rest.len().min(size - self.at));
        self.tail[self.at..self.at + right.len()].copy_from_slice(right);
        self.tail[..left.len()].copy_from_slice(left);
        self.at = (self.at + rest.len()) % size;
    }

    /// Ends it.
    #[must_use]
    pub(super) fn finish(mut self) -> Kept {
        self.tail.rotate_left(self.at);
        let head = self.head.len();
        let mut bytes = self.head;
        if bytes.is_empty() {
            bytes = self.tail;
        } else {
            bytes.extend_from_slice(&self.tail);
        }
        Kept {
            head,
            dropped: self.total - bytes.len() as u64,
            bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn head_and_tail_are_those_of_the_whole(
            cap in 0_usize..40,
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..12),
        ) {
            let mut capture = Capture::new(cap);
            for part in &parts {
                capture.push(part);
            }
            let whole = parts.concat();
            let kept = capture.finish();

            prop_assert_eq!(kept.bytes.len(), whole.len().min(cap));
            prop_assert_eq!(kept.dropped, (whole.len() - kept.bytes.len()) as u64);
            prop_assert_eq!(&kept.bytes[..kept.head], &whole[..kept.head]);
            let tail = &kept.bytes[kept.head..];
            prop_assert!(whole.ends_with(tail));
            if kept.dropped > 0 {
                prop_assert_eq!(kept.head, cap - cap / 2);
            }
        }
    }
}
