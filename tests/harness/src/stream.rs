//! A numbered stream of UDP datagrams, and a receiver that knows what is missing.

use std::fmt;
use std::net::UdpSocket;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use nix::sys::socket::{setsockopt, sockopt};

use crate::netns::NetNs;

/// Bytes of the receiver's socket buffer.
const RECEIVE_BUFFER: usize = 64 << 20;

/// What a receiver saw.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StreamReport {
    /// Datagrams sent.
    pub sent: u64,
    /// Different ones received.
    pub received: u64,
    /// Received more than once.
    pub duplicates: u64,
    /// Received with other bytes than sent.
    pub damaged: u64,
    /// Received for the first time after one with a higher number (RFC 4737, section 3).
    pub reordered: u64,
    /// Numbers of the reordered ones, as they came.
    pub late: Vec<u64>,
    /// Numbers of those that never came, from 0.
    pub missing: Vec<u64>,
    /// When each was sent, from the first one on: a sender that was held up sends what is due at once.
    pub sent_at: Vec<Duration>,
}

/// Without the times, of which there are too many to read.
impl fmt::Debug for StreamReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, received, duplicates, damaged, reordered, missing, .. } = self;
        write!(
            f,
            "{received} of {sent} received, {duplicates} doubled, {damaged} damaged, {reordered} reordered"
        )?;
        write!(f, ", missing {missing:?}")
    }
}

impl StreamReport {
    /// Everything came once, unharmed.
    pub fn is_whole(&self) -> bool {
        self.received == self.sent && self.duplicates == 0 && self.damaged == 0
    }

    /// The time from the sending of the first of these to that of the last.
    pub fn span(&self, numbers: &[u64]) -> Duration {
        let times = numbers.iter().filter_map(|number| self.sent_at.get(usize::try_from(*number).ok()?));
        let (first, last) = (times.clone().min(), times.max());
        first.zip(last).map_or(Duration::ZERO, |(first, last)| *last - *first)
    }
}

/// A stream from one namespace to an address in another.
#[derive(Clone, Debug)]
pub struct UdpStream {
    /// Destination address.
    pub destination: String,
    /// Destination port.
    pub port: u16,
    /// Datagrams.
    pub count: u64,
    /// Payload bytes, at least 8.
    pub size: usize,
    /// Time between two datagrams.
    pub gap: Duration,
}

impl UdpStream {
    /// Sends and receives everything; `during` runs meanwhile.
    ///
    /// # Errors
    /// When sockets fail or `during` does.
    pub fn run(&self, from: &NetNs, to: &NetNs, during: impl FnOnce() -> Result<()>) -> Result<StreamReport> {
        let running = self.start(from, to)?;
        during()?;
        running.finish()
    }

    /// Starts to send and to receive.
    ///
    /// # Errors
    /// When the receiver cannot be bound.
    pub fn start(&self, from: &NetNs, to: &NetNs) -> Result<RunningStream> {
        let any = if self.destination.contains(':') { "[::]" } else { "0.0.0.0" };
        let bind = format!("{any}:{}", self.port);
        let receiver = to.enter(move || UdpSocket::bind(&bind).context("binding the receiver"))?;
        // Room for the whole stream: on a busy machine the receiver may not run for a while, and what its own
        // socket drops would look like a loss on the way.
        setsockopt(&receiver, sockopt::RcvBufForce, &RECEIVE_BUFFER)
            .context("sizing the receiver's buffer")?;
        receiver.set_read_timeout(Some(Duration::from_millis(500)))?;
        let (stream, count) = (self.clone(), self.count);
        let target = if self.destination.contains(':') {
            format!("[{}]:{}", self.destination, self.port)
        } else {
            format!("{}:{}", self.destination, self.port)
        };
        let local = format!("{any}:0");
        let sender = from.enter_later(move || stream.send(&local, &target))?;
        let size = self.size;
        let receiver = std::thread::spawn(move || collect(&receiver, count, size));
        Ok(RunningStream { sender, receiver })
    }

    /// Returns when each was sent.
    fn send(&self, local: &str, target: &str) -> Result<Vec<Duration>> {
        let socket = UdpSocket::bind(local)?;
        socket.connect(target)?;
        let start = Instant::now();
        let mut payload = vec![0u8; self.size.max(8)];
        let mut times = Vec::new();
        for number in 0..self.count {
            fill(&mut payload, number);
            times.push(start.elapsed());
            socket.send(&payload)?;
            let due = self.gap.saturating_mul(u32::try_from(number + 1)?);
            if let Some(rest) = due.checked_sub(start.elapsed()) {
                std::thread::sleep(rest);
            }
        }
        Ok(times)
    }
}

/// A stream on its way.
#[derive(Debug)]
pub struct RunningStream {
    sender: JoinHandle<Result<Vec<Duration>>>,
    receiver: JoinHandle<Result<StreamReport>>,
}

impl RunningStream {
    /// Waits until all is sent and received.
    ///
    /// # Errors
    /// When sockets failed.
    pub fn finish(self) -> Result<StreamReport> {
        let sent_at = self.sender.join().ok().context("the sender panicked")??;
        let mut report = self.receiver.join().ok().context("the receiver panicked")??;
        report.sent = sent_at.len() as u64;
        report.sent_at = sent_at;
        Ok(report)
    }
}

fn fill(payload: &mut [u8], number: u64) {
    for (offset, byte) in payload.iter_mut().enumerate() {
        *byte = (number as usize).wrapping_mul(31).wrapping_add(offset) as u8;
    }
    if let Some(head) = payload.get_mut(..8) {
        head.copy_from_slice(&number.to_be_bytes());
    }
}

fn collect(socket: &UdpSocket, count: u64, size: usize) -> Result<StreamReport> {
    let mut seen = vec![false; usize::try_from(count)?];
    let (mut report, mut buffer, mut expected) =
        (StreamReport::default(), vec![0; 65536], vec![0; size.max(8)]);
    let (mut quiet, mut next) = (0, 0);
    while quiet < 6 && report.received < count {
        let Ok(len) = socket.recv(&mut buffer) else {
            quiet += 1;
            continue;
        };
        quiet = 0;
        let Some(head) = buffer.get(..8).and_then(|head| head.try_into().ok()) else {
            continue;
        };
        let number = u64::from_be_bytes(head);
        fill(&mut expected, number);
        let Some(slot) = seen.get_mut(usize::try_from(number)?) else {
            report.damaged += 1;
            continue;
        };
        if buffer.get(..len) != Some(expected.as_slice()) {
            report.damaged += 1;
        } else if std::mem::replace(slot, true) {
            report.duplicates += 1;
        } else {
            report.received += 1;
            if number < next {
                report.reordered += 1;
                report.late.push(number);
            }
            next = next.max(number + 1);
        }
    }
    // A second copy of the last ones may still be on its way.
    while socket.recv(&mut buffer).is_ok() {
        report.duplicates += 1;
    }
    report.missing = (0..).zip(&seen).filter(|(_, seen)| !**seen).map(|(number, _)| number).collect();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use anyhow::Result;

    use super::{collect, fill};

    #[test]
    fn a_receiver_tells_lost_doubled_damaged_and_late_ones_apart() -> Result<()> {
        let receiver = UdpSocket::bind("127.0.0.1:0")?;
        receiver.set_read_timeout(Some(Duration::from_millis(50)))?;
        let sender = UdpSocket::bind("127.0.0.1:0")?;
        sender.connect(receiver.local_addr()?)?;
        let mut payload = vec![0; 100];
        for number in [0, 1, 6, 2, 3, 3, 4] {
            fill(&mut payload, number);
            sender.send(&payload)?;
        }
        fill(&mut payload, 5);
        payload[50] ^= 1;
        sender.send(&payload)?;
        let report = collect(&receiver, 8, 100)?;
        assert_eq!((report.received, report.duplicates, report.damaged), (6, 1, 1), "{report:?}");
        assert_eq!((report.reordered, report.missing.as_slice()), (3, [5, 7].as_slice()), "{report:?}");
        assert_eq!(report.late, [2, 3, 4]);
        let report = super::StreamReport { sent_at: (0..8).map(Duration::from_secs).collect(), ..report };
        assert_eq!(report.span(&report.late), Duration::from_secs(2));
        assert_eq!(report.span(&[]), Duration::ZERO);
        Ok(())
    }
}
