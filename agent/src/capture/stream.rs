//! The stream of a capture. Messages, each behind its kind (a byte) and its length (four, little-endian):
//!
//! | kind | content |
//! |---|---|
//! | 0 | JSON: `Begun`, `State`, at last `End` |
//! | 1 | pod, direction, time (ns), length, then the frame's bytes; numbers of 4, 4, 8 and 4 bytes, little-endian |

use podwire_datapath::core::abi::Direction;
use serde_json::Value;

const SAID: u8 = 0;
const FRAME: u8 = 1;
const HEAD: usize = 5;
const FRAME_HEAD: usize = 20;
/// Longer than any message: a frame of the kernel's largest super-packets, or the account of many pods.
const LONGEST: usize = 1 << 20;

/// What is said of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Which of the request's pods.
    pub pod: u32,
    /// Relative to it.
    pub direction: Direction,
    /// Nanoseconds since 1970 by the clock of the pod's node.
    pub time_ns: u64,
    /// Bytes of the frame before it was cut.
    pub length: u32,
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Something said.
    Said(Value),
    /// A frame.
    Frame(FrameHead, Vec<u8>),
}

/// Appends something said.
pub fn write_said(out: &mut Vec<u8>, value: &Value) {
    write(out, SAID, &[value.to_string().as_bytes()]);
}

/// Appends a frame.
pub fn write_frame(out: &mut Vec<u8>, head: &FrameHead, bytes: &[u8]) {
    let mut words = [0; FRAME_HEAD];
    words[..4].copy_from_slice(&head.pod.to_le_bytes());
    words[4..8].copy_from_slice(&head.direction.index().to_le_bytes());
    words[8..16].copy_from_slice(&head.time_ns.to_le_bytes());
    words[16..].copy_from_slice(&head.length.to_le_bytes());
    write(out, FRAME, &[&words, bytes]);
}

fn write(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.push(kind);
    out.extend_from_slice(&(len as u32).to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Reads messages out of bytes as they come.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    at: usize,
}

impl Decoder {
    /// More bytes.
    pub fn push(&mut self, more: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(more);
    }

    /// The next whole message.
    ///
    /// # Errors
    /// Saying what is no message.
    pub fn next(&mut self) -> Result<Option<Message>, String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some((&[kind, a, b, c, d], rest)) = rest.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len > LONGEST {
            return Err(format!("a message of {len} bytes"));
        }
        let Some(content) = rest.get(..len) else {
            return Ok(None);
        };
        let message = match kind {
            SAID => Message::Said(serde_json::from_slice(content).map_err(|error| error.to_string())?),
            FRAME => frame(content).ok_or("a frame without a head")?,
            other => return Err(format!("a message of kind {other}")),
        };
        self.at += HEAD + len;
        Ok(Some(message))
    }
}

fn frame(content: &[u8]) -> Option<Message> {
    let (pod, rest) = content.split_first_chunk()?;
    let (direction, rest) = rest.split_first_chunk()?;
    let (time, rest) = rest.split_first_chunk()?;
    let (length, bytes) = rest.split_first_chunk()?;
    let head = FrameHead {
        pod: u32::from_le_bytes(*pod),
        direction: Direction::from_index(u32::from_le_bytes(*direction)),
        time_ns: u64::from_le_bytes(*time),
        length: u32::from_le_bytes(*length),
    };
    Some(Message::Frame(head, bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn messages_come_out_however_they_are_cut(
            frames in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..100)), 0..20),
            cut in 1..50usize,
        ) {
            let (mut bytes, mut expected) = (Vec::new(), vec![Message::Said(json!({"kind": "Begun"}))]);
            write_said(&mut bytes, &json!({"kind": "Begun"}));
            for (pod, time_ns, length, content) in frames {
                let head = FrameHead { pod, direction: Direction::Egress, time_ns, length };
                write_frame(&mut bytes, &head, &content);
                expected.push(Message::Frame(head, content));
            }
            let (mut decoder, mut read) = (Decoder::default(), Vec::new());
            for part in bytes.chunks(cut) {
                decoder.push(part);
                while let Some(message) = decoder.next().expect("a message") {
                    read.push(message);
                }
            }
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn strange_bytes_are_refused_or_awaited(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }
}
