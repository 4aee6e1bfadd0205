//! The user-space encapsulator. In: records of the ring (snapshots, and frames that need fragments). Out: each,
//! dressed by the same template as the datapath's, sent by a raw socket, so that the kernel routes it, resolves
//! the neighbour and cuts it into fragments where it must.
//!
//! A thread of its own, which runs while a session needs it. The datapath sees by a clock whether it runs, and
//! makes clones instead when it does not.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use podwire_core::abi::{Reason, RelayRow, SessionCounters, SessionRow, limits};
use podwire_core::stage::copy::{Outcome, Stamp, erspan_direction};
use podwire_core::wire::encap::{OUTER_MAX, OuterTemplate, PerPacket};
use podwire_core::wire::{erspan, ethernet, protocol};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use crate::error::{Context, Error};
use crate::maps::{Table, read_head};
use crate::offload::complete_checksum;
use crate::sys;

/// How long a record waits at most: the datapath wakes the reader for large amounts only.
const PERIOD: Duration = Duration::from_millis(2);
/// How often an idle encapsulator looks whether it is needed.
const IDLE: Duration = Duration::from_millis(50);
/// `skb->mark` of copies is set on what is sent, so that it is never copied again.
type Rows = Arc<Mutex<HashMap<u32, SessionRow>>>;

/// The thread and what it is told.
pub(crate) struct Relay {
    rows: Rows,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts the thread in the caller's network namespace.
    pub(crate) fn start(
        ring: RingBuf<MapData>,
        counters: Table<SessionCounters>,
        clock: Table<u64>,
        copy_mark: u32,
    ) -> Result<Self, Error> {
        let rows = Rows::default();
        let end = Arc::new(AtomicBool::new(false));
        let mut worker = Worker {
            ring,
            counters,
            clock,
            rows: rows.clone(),
            end: end.clone(),
            sockets: Sockets { mark: copy_mark, open: HashMap::new() },
        };
        let thread = std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || worker.run())
            .context(|| "starting the encapsulator's thread".into())?;
        Ok(Self { rows, end, thread: Some(thread) })
    }

    /// Says which sessions there are that need it.
    pub(crate) fn set_sessions(&self, sessions: HashMap<u32, SessionRow>) {
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = sessions;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    ring: RingBuf<MapData>,
    counters: Table<SessionCounters>,
    clock: Table<u64>,
    rows: Rows,
    end: Arc<AtomicBool>,
    sockets: Sockets,
}

impl Worker {
    fn run(&mut self) {
        while !self.end.load(Ordering::Relaxed) {
            let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if rows.is_empty() {
                // Nobody needs it; what is left in the ring is of sessions that are gone.
                self.drain(&rows);
                std::thread::sleep(IDLE);
                continue;
            }
            if let Err(error) = self.clock.set(1, monotonic_ns()) {
                tracing::warn!(%error, "the datapath cannot be told that its ring is read");
            }
            let timeout = PollTimeout::try_from(PERIOD).unwrap_or(PollTimeout::ZERO);
            if let Some(fd) = borrow(&self.ring) {
                let _ = poll(&mut [fd], timeout);
            }
            self.drain(&rows);
        }
    }

    /// Sends all records that wait.
    fn drain(&mut self, rows: &HashMap<u32, SessionRow>) {
        let mut booked: HashMap<u32, SessionCounters> = HashMap::new();
        while let Some(record) = self.ring.next() {
            let Some(head) = read_head::<RelayRow>(&record) else {
                continue;
            };
            let frame = record.get(size_of::<RelayRow>()..).unwrap_or_default();
            let outcome = match rows.get(&head.session) {
                Some(row) => self.sockets.send(row, &head, frame),
                None => Outcome::Lost(Reason::SessionMissing),
            };
            let counters = booked.entry(head.session).or_default();
            counters.taken_packets += 1;
            counters.record(&outcome);
        }
        for (session, more) in booked {
            if session >= limits::SESSIONS {
                continue;
            }
            let total = self.counters.get(session).map(|row| crate::status::sum_session(row, &more));
            if let Err(error) = total.and_then(|total| self.counters.set(session, total)) {
                tracing::warn!(%error, session, "what was sent could not be counted");
            }
        }
    }
}

fn borrow(ring: &RingBuf<MapData>) -> Option<PollFd<'_>> {
    let fd = ring.as_raw_fd();
    // The ring outlives the borrow; it is only waited for.
    if fd < 0 {
        return None;
    }
    Some(PollFd::new(ring.as_fd(), PollFlags::POLLIN))
}

/// The kernel's monotonic clock in nanoseconds, as programs see it.
pub(crate) fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

/// The node's clock less the monotonic one, in nanoseconds.
pub(crate) fn clock_offset() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME).wrapping_sub(monotonic_ns())
}

fn nanoseconds(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Raw sockets by outer family and protocol: the kernel writes the IP header.
struct Sockets {
    mark: u32,
    open: HashMap<(bool, u8), Socket>,
}

impl Sockets {
    fn send(&mut self, row: &SessionRow, head: &RelayRow, captured: &[u8]) -> Outcome {
        let Some((packet, truncated)) = dress(&row.template, head, captured) else {
            return Outcome::Lost(Reason::EncapsulationRefused);
        };
        let transport = usize::from(row.template.transport_offset);
        match self.give(&row.template, packet.get(transport..).unwrap_or_default()) {
            Ok(()) => {
                // As the datapath counts: with the outer Ethernet header.
                let bytes = (packet.len() + ethernet::HEADER_LEN) as u32;
                Outcome::Sent { bytes, truncated }
            }
            Err(error) => Outcome::Lost(reason(&error)),
        }
    }

    fn give(&mut self, template: &OuterTemplate, packet: &[u8]) -> io::Result<()> {
        let remote = template.remote();
        let protocol =
            if template.kind().is_some_and(|kind| kind.is_udp()) { protocol::UDP } else { protocol::GRE };
        let socket = match self.open.entry((remote.is_ipv6(), protocol)) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(open(remote, protocol, self.mark)?)
            }
        };
        socket.send_to(packet, &SocketAddr::new(remote, 0).into()).map(|_| ())
    }
}

/// The outer headers and the inner frame, and whether that one is cut.
fn dress(template: &OuterTemplate, head: &RelayRow, captured: &[u8]) -> Option<(Vec<u8>, bool)> {
    let frame = with_tag(head, captured)?;
    let truncated = captured.len() < head.original as usize;
    let (tag, tci) = tag_of(&frame);
    let stamp = Stamp { time_ns: head.timestamp_ns, sequence: head.sequence, ..Stamp::default() };
    let packet = PerPacket {
        timestamp_ns: stamp.time_ns,
        inner_len: frame.len() as u32,
        flow_hash: head.flow_hash,
        sequence: stamp.sequence,
        direction: erspan_direction(head.direction),
        truncated: u32::from(truncated),
        ip_id: 0,
        vlan_tci: tci,
        vlan_tag: tag as u32,
        pad: 0,
    };
    let mut outer = [0; OUTER_MAX];
    let len = template.fill(&packet, &mut outer);
    let mut whole = Vec::with_capacity(len + frame.len());
    whole.extend_from_slice(&outer[..len]);
    whole.extend_from_slice(&frame);
    Some((whole, truncated))
}

/// The frame with the tag that the kernel kept beside it, and with whole checksums if it is whole itself.
fn with_tag(head: &RelayRow, captured: &[u8]) -> Option<Vec<u8>> {
    let mut frame = Vec::with_capacity(captured.len() + 4);
    let (macs, rest) = captured.split_at_checked(12)?;
    frame.extend_from_slice(macs);
    if head.vlan != 0 {
        frame.extend_from_slice(&head.vlan.to_be_bytes());
    }
    frame.extend_from_slice(rest);
    if captured.len() == head.original as usize {
        complete_checksum(&mut frame);
    }
    Some(frame)
}

fn tag_of(frame: &[u8]) -> (erspan::VlanTag, u16) {
    match frame.get(12..16) {
        Some(&[high, low, one, two])
            if matches!(
                u16::from_be_bytes([high, low]),
                ethernet::ETHER_TYPE_VLAN | ethernet::ETHER_TYPE_QINQ
            ) =>
        {
            (erspan::VlanTag::InFrame, u16::from_be_bytes([one, two]))
        }
        _ => (erspan::VlanTag::None, 0),
    }
}

fn open(remote: IpAddr, protocol: u8, mark: u32) -> io::Result<Socket> {
    let v6 = remote.is_ipv6();
    let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(protocol))))?;
    // It only sends: a program that takes nothing keeps the node's own traffic out of its queue.
    const RETURN_NOTHING: u16 = 0x06;
    socket.attach_filter(&[SockFilter::new(RETURN_NOTHING, 0, 0, 0)])?;
    socket.set_mark(mark)?;
    sys::allow_fragments(&socket, v6)?;
    Ok(socket)
}

fn reason(error: &io::Error) -> Reason {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => Reason::NoRoute,
        io::ErrorKind::NetworkDown => Reason::DeviceDown,
        _ => Reason::SendFailed,
    }
}
