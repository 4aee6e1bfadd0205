//! Packets by time. In: packets as they come, from several CPUs and nodes. Out: the same, each held back for a moment in
//! which earlier ones may still come.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::capture::FrameHead;

/// Bytes that are held back at most.
const HELD: usize = 64 << 20;

/// A packet.
#[derive(Debug)]
pub struct Packet {
    /// Its number in the file of the pod's interface.
    pub interface: u32,
    /// What is said of it.
    pub head: FrameHead,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

struct Held {
    packet: Packet,
    came: Instant,
    number: u64,
}

impl Held {
    fn key(&self) -> (u64, u64) {
        (self.packet.head.time_ns, self.number)
    }
}

/// The earliest is the greatest: it leaves the heap first.
impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Held {}

/// Those that are held back.
pub struct Order {
    window: Duration,
    heap: BinaryHeap<Held>,
    bytes: usize,
    last: u64,
}

impl Order {
    /// Holds each packet back for so long.
    pub fn new(window: Duration) -> Self {
        Self { window, heap: BinaryHeap::new(), bytes: 0, last: 0 }
    }

    /// A packet has come.
    pub fn put(&mut self, packet: Packet, now: Instant) {
        self.last += 1;
        self.bytes += packet.bytes.len();
        self.heap.push(Held { packet, came: now, number: self.last });
    }

    /// The earliest packet, if it was held back long enough or too much is held.
    pub fn take(&mut self, now: Instant) -> Option<Packet> {
        let first = self.heap.peek()?;
        if self.bytes <= HELD && now.duration_since(first.came) < self.window {
            return None;
        }
        self.take_any()
    }

    /// The earliest packet: no more come.
    pub fn take_any(&mut self) -> Option<Packet> {
        let held = self.heap.pop()?;
        self.bytes -= held.packet.bytes.len();
        Some(held.packet)
    }
}

#[cfg(test)]
mod tests {
    use podwire_datapath::core::abi::Direction;

    use super::*;

    fn packet(time_ns: u64) -> Packet {
        let head = FrameHead { pod: 0, direction: Direction::Ingress, time_ns, length: 0 };
        Packet { interface: 0, head, bytes: Vec::new() }
    }

    #[test]
    fn within_the_window_packets_come_by_time() {
        let (start, window) = (Instant::now(), Duration::from_millis(100));
        let mut order = Order::new(window);
        for (time, after) in [(5, 0), (3, 10), (4, 20), (9, 30)] {
            order.put(packet(time), start + Duration::from_millis(after));
        }
        assert!(order.take(start + Duration::from_millis(105)).is_none(), "the earliest came at 10 ms");
        let at = start + Duration::from_millis(125);
        let times: Vec<u64> =
            std::iter::from_fn(|| order.take(at)).map(|packet| packet.head.time_ns).collect();
        assert_eq!(times, [3, 4, 5]);
        assert_eq!(order.take_any().map(|packet| packet.head.time_ns), Some(9));
        assert!(order.take_any().is_none());
    }

    #[test]
    fn packets_of_one_time_keep_their_order() {
        let mut order = Order::new(Duration::ZERO);
        for interface in 0..10 {
            order.put(Packet { interface, ..packet(7) }, Instant::now());
        }
        let interfaces: Vec<u32> =
            std::iter::from_fn(|| order.take_any()).map(|packet| packet.interface).collect();
        assert!(interfaces.is_sorted(), "{interfaces:?}");
    }
}
