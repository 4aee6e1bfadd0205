//! Packets by time. In: packets as they come, from several CPUs and nodes. Out: the same, each held back for a moment in
//! which earlier ones may still come.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
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
    /// When packets came, from `first` on; none for those that are gone.
    came: VecDeque<Option<Instant>>,
    first: u64,
    bytes: usize,
}

impl Order {
    /// Holds each packet back for so long.
    pub fn new(window: Duration) -> Self {
        Self { window, heap: BinaryHeap::new(), came: VecDeque::new(), first: 0, bytes: 0 }
    }

    /// A packet has come.
    pub fn put(&mut self, packet: Packet, now: Instant) {
        self.bytes += packet.bytes.len();
        self.heap.push(Held { packet, number: self.first + self.came.len() as u64 });
        self.came.push_back(Some(now));
    }

    /// The earliest packet, if any was held back long enough or too much is held: by a clock that is ahead, the one that
    /// came first is not the earliest, and must not wait for all others.
    pub fn take(&mut self, now: Instant) -> Option<Packet> {
        let oldest = (*self.came.front()?)?;
        if self.bytes <= HELD && now.duration_since(oldest) < self.window {
            return None;
        }
        self.take_any()
    }

    /// The earliest packet: no more come.
    pub fn take_any(&mut self) -> Option<Packet> {
        let held = self.heap.pop()?;
        self.bytes -= held.packet.bytes.len();
        let at = held.number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(came) = at.and_then(|at| self.came.get_mut(at)) {
            *came = None;
        }
        while let Some(None) = self.came.front() {
            self.came.pop_front();
            self.first += 1;
        }
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
        assert!(order.take(start + Duration::from_millis(95)).is_none(), "the first came at 0 ms");
        let at = start + Duration::from_millis(105);
        let times: Vec<u64> =
            std::iter::from_fn(|| order.take(at)).map(|packet| packet.head.time_ns).collect();
        assert_eq!(times, [3, 4, 5]);
        assert_eq!(order.take_any().map(|packet| packet.head.time_ns), Some(9));
        assert!(order.take_any().is_none());
    }

    #[test]
    fn a_clock_that_is_ahead_is_not_held_back_by_others() {
        let (start, window) = (Instant::now(), Duration::from_millis(100));
        let mut order = Order::new(window);
        order.put(packet(1_000_000), start);
        let mut times = Vec::new();
        for after in 1..=120 {
            let now = start + Duration::from_millis(after);
            order.put(packet(after), now);
            times.extend(std::iter::from_fn(|| order.take(now)).map(|packet| packet.head.time_ns));
        }
        assert_eq!(times.iter().position(|time| *time == 1_000_000), Some(100), "due at 100 ms: {times:?}");
        assert_eq!(times.len(), 101, "the rest waits for its own time");
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
