//! A copy into its tunnel. In: a frame and a session's template. Out: the frame with its outer headers, given
//! to the device and the neighbour that the kernel's tables name.
//!
//! `bpf_redirect` would lose a frame to a dead device in silence, so the last step is a clone whose result is
//! known. Only while the neighbour is unknown the frame itself goes to the kernel's neighbour layer, which
//! keeps it until the answer comes.

use aya_ebpf::bindings::{
    BPF_ADJ_ROOM_ENCAP_L2_SHIFT, BPF_F_ADJ_ROOM_ENCAP_L2_ETH, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
    BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L4_GRE, BPF_F_ADJ_ROOM_ENCAP_L4_UDP,
    BPF_F_ADJ_ROOM_FIXED_GSO,
};
use podwire_core::{
    abi::{CopyRow, Generation, Reason, SegmentMark, SessionKind, SessionRow},
    stage::{
        Counters, Packet, State, Tables,
        copy::{MAX_LINK_LEN, Outcome, Shape, Stamp, is_numbered, is_tcp, is_timed},
    },
    wire::{
        encap::{Family, OUTER_MAX, OuterTemplate, PerPacket, TunnelKind},
        ethernet,
    },
};

use crate::{
    global,
    maps::{self, HEADERS, HEADERS_LEN},
    relay, segment,
    skb::{Path, Route, Skb, to_words},
    tables::Maps,
    verdict::DROP,
};

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// The scratch row: outer Ethernet header, outer headers (at a multiple of eight), inner link header.
const ETHERNET_AT: usize = 2;
const OUTER_AT: usize = ETHERNET_AT + ethernet::HEADER_LEN;
const MAX_HEADERS: usize = ethernet::HEADER_LEN + OUTER_MAX + MAX_LINK_LEN;
/// A mask that bounds what is stored.
const STORE_MASK: u32 = 255;
const _: () = assert!(MAX_HEADERS <= STORE_MASK as usize);
const _: () = assert!(ETHERNET_AT + (STORE_MASK as usize) < HEADERS_LEN);

/// Where a copy leaves.
struct Way {
    ifindex: u32,
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    resolved: bool,
}

/// What is to be done with a frame.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Job {
    pub copy: CopyRow,
    /// Number of the frame in the session, of this CPU.
    pub number: u64,
    pub session: u32,
    /// Not 0 when the frame was cut already.
    pub truncated: u32,
}

/// Has the outer headers written to the scratch row.
#[inline(always)]
fn fill(copy: &CopyRow, session: u32, packet: &PerPacket) {
    if let Some(row) = maps::PACKET.get_ptr_mut(0) {
        // SAFETY: a per-CPU row that the function below reads at once.
        unsafe { *row = *packet };
        global::fill_headers(session, Generation(copy.generation).bank());
    }
}

/// [`OuterTemplate::fill`] on the rows of the maps.
#[inline(always)]
pub fn fill_scratch(row: &SessionRow) -> u32 {
    let (Some(packet), Some(headers)) = (maps::PACKET.get(0), HEADERS.get_ptr_mut(0)) else {
        return 0;
    };
    // SAFETY: the row has room for the longest headers; the program alone uses it on this CPU.
    let outer = unsafe { &mut *headers.cast::<u8>().add(OUTER_AT).cast::<[u8; OUTER_MAX]>() };
    row.template.fill(packet, outer) as u32
}

/// Has a frame sent into its tunnel.
#[inline(always)]
pub fn order(frame: Skb, job: &Job) -> i32 {
    let Some(row) = maps::JOB.get_ptr_mut(0) else {
        return DROP;
    };
    // SAFETY: a per-CPU row; the frame is sent before another one is looked at.
    unsafe { *row = *job };
    global::send_tunnelled(frame.as_raw())
}

/// Sends a frame and books what became of it. Returns the program's code.
#[inline(always)]
pub fn send(frame: Skb, job: &Job) -> i32 {
    let (outcome, code) = match Maps.session(Generation(job.copy.generation), job.session) {
        Some(row) if row.kind == SessionKind::Tunnel as u32 => tunnel(frame, &job.copy, row, job),
        _ => (Outcome::Lost(Reason::SessionMissing), DROP),
    };
    book(&job.copy, job.session, &outcome);
    code
}

/// Books what became of a copy; of a redirected packet the pod's hook is told, which books it.
#[inline(always)]
pub fn book(copy: &CopyRow, session: u32, outcome: &Outcome) {
    if let Outcome::Lost(reason) = *outcome {
        if copy.redirect != 0 {
            report(reason);
        } else {
            Maps.count_reason(reason);
        }
    }
    Maps.count_session(session, |row| row.record(outcome));
}

/// Tells the pod's hook that its packet did not leave.
#[inline(always)]
fn report(reason: Reason) {
    if let Some(row) = maps::COPY.get_ptr_mut(0) {
        // SAFETY: a per-CPU row; the pod's hook reads it when the mirror program is done.
        unsafe { (*row).failure = reason as u32 + 1 };
    }
}

/// What stands in the way.
enum Trouble {
    Lost(Reason),
    /// It does not fit, and the session wants fragments.
    Fragment,
    /// As a super-packet it cannot be dressed; its pieces can.
    CutUp,
}

impl From<Reason> for Trouble {
    #[inline(always)]
    fn from(reason: Reason) -> Self {
        Self::Lost(reason)
    }
}

/// Dresses the frame and sends it. Returns what became of it and the program's return code.
#[inline(always)]
fn tunnel(frame: Skb, copy: &CopyRow, row: &SessionRow, job: &Job) -> (Outcome, i32) {
    match dress(frame, copy, row, job) {
        Ok((way, truncated)) if way.resolved => (give(frame, way.ifindex, truncated), DROP),
        Ok((way, truncated)) => (Outcome::Queued { truncated }, Skb::redirect_neigh(way.ifindex)),
        Err(Trouble::Lost(reason)) => (Outcome::Lost(reason), DROP),
        Err(Trouble::Fragment) => (fragment(frame, copy, row, job), DROP),
        Err(Trouble::CutUp) => {
            let mark = SegmentMark::copy(job.session, copy.direction, job.truncated != 0);
            (segment::cut_up(frame, mark), DROP)
        }
    }
}

/// The kernel cuts packets into fragments only for sockets.
#[inline(always)]
fn fragment(frame: Skb, copy: &CopyRow, row: &SessionRow, job: &Job) -> Outcome {
    let now = Maps.now();
    let about = relay::About {
        session: job.session,
        bank: Generation(copy.generation).bank(),
        direction: copy.direction,
        flow_hash: copy.flow_hash,
        captured: frame.frame_len(),
        now,
    };
    if Maps.relay_is_alive(now) && relay::record(frame, row, &about) {
        Outcome::Handed
    } else {
        Outcome::Lost(Reason::RingFull)
    }
}

/// Makes the segments of a TCP super-packet smaller, so that each fits with the headers it will get: room that
/// is made shrinks them, room that is taken away again with its size fixed does not grow them.
#[inline(always)]
pub fn shrink_segments(frame: Skb, bytes: u32) {
    if frame.gso_size() != 0 && frame.make_room(bytes, 0) {
        let _ = frame.remove_room(bytes, BPF_F_ADJ_ROOM_FIXED_GSO as u64);
    }
}

/// Gives a clone of the frame to a device.
#[inline(always)]
pub fn give(frame: Skb, ifindex: u32, truncated: bool) -> Outcome {
    let bytes = frame.frame_len();
    match frame.clone_redirect(ifindex) {
        Ok(()) => Outcome::Sent { bytes, truncated },
        Err(error) if error < 0 => Outcome::Lost(Reason::DeviceMissing),
        Err(_) => Outcome::Lost(Reason::DeviceDown),
    }
}

#[inline(always)]
fn dress(frame: Skb, copy: &CopyRow, row: &SessionRow, job: &Job) -> Result<(Way, bool), Trouble> {
    let template = &row.template;
    let beside = frame.vlan();
    let Some(whole) = Shape::new(copy, frame.frame_len(), beside.is_some(), frame.gso_size()) else {
        return Err(Reason::EncapsulationRefused.into());
    };
    let (way, shape) = fit(frame, copy, row, &whole)?;
    let Some(headers) = HEADERS.get_ptr_mut(0) else {
        return Err(Reason::EncapsulationRefused.into());
    };
    let truncated = job.truncated != 0 || shape.inner_len < whole.inner_len;
    let stamp = Stamp {
        time_ns: if is_timed(template) { Maps.wall_clock(Maps.now()) } else { 0 },
        sequence: if is_numbered(template) { Maps.next_sequence(job.session) } else { 0 },
        ip_id: ip_id(job.number),
        vlan_tci: tci(frame, copy, beside),
        truncated,
    };
    let base = headers.cast::<u8>();
    // SAFETY: the row has room for the longest headers; the program alone uses it on this CPU.
    unsafe {
        fill(copy, job.session, &shape.per_packet(copy, &stamp));
        write_ethernet(base.add(ETHERNET_AT), &way, template.ether_type());
        write_link(frame, copy, beside, base.add(OUTER_AT + template.overhead()))?;
    }
    for tag in 0..3 {
        if tag < shape.tags && !frame.pop_vlan() {
            return Err(Reason::EncapsulationRefused.into());
        }
    }
    let waits = match make_room(frame, copy, template, &shape) {
        // A pod's own tunnel is refused by the kernel, which would have to keep two of them in mind.
        Err(_) if shape.gso_size != 0 && shape.tags == 0 && copy.redirect == 0 => return Err(Trouble::CutUp),
        made => made?,
    };
    // The compiler knows the bound from the shape and would leave the checks out; the verifier does not.
    // Before Linux 6.8 it does not learn from `!= 0` that a length is at least 1, so the sum says it.
    let len =
        (core::hint::black_box(shape.growth(template) + ethernet::HEADER_LEN as u32 - 1) & STORE_MASK) + 1;
    // SAFETY: the length was bounded just now.
    if !unsafe { frame.store(&*base.add(ETHERNET_AT).cast::<[u8; STORE_MASK as usize + 1]>(), len) } {
        return Err(Reason::EncapsulationRefused.into());
    }
    if !way.resolved && !waits {
        return Err(Reason::NeighbourUnknown.into());
    }
    frame.set_mark(Maps.copy_mark());
    Ok((way, truncated))
}

/// Control information of the outermost VLAN tag, 0 for none.
#[inline(always)]
fn tci(frame: Skb, copy: &CopyRow, beside: Option<(u16, u16)>) -> u16 {
    match beside {
        Some((_, tci)) => tci,
        None if copy.network_offset > ethernet::HEADER_LEN as u32 => {
            frame.load::<2>(ethernet::HEADER_LEN as u32).map_or(0, u16::from_be_bytes)
        }
        None => 0,
    }
}

/// Finds the way, and cuts the frame when it does not fit and may be cut.
#[inline(always)]
fn fit(frame: Skb, copy: &CopyRow, row: &SessionRow, whole: &Shape) -> Result<(Way, Shape), Trouble> {
    let template = &row.template;
    let mtu = match look_up(frame, template, whole.wire_len(copy, template)) {
        Path::Resolved { ifindex, source_mac, destination_mac, .. } if !whole.exceeds_ip(template) => {
            return Ok((Way { ifindex, source_mac, destination_mac, resolved: true }, *whole));
        }
        Path::Unresolved { ifindex, .. } if !whole.exceeds_ip(template) => {
            return Ok((unresolved(ifindex), *whole));
        }
        Path::NoRoute => return Err(Reason::NoRoute.into()),
        Path::Resolved { mtu, .. } | Path::Unresolved { mtu, .. } | Path::TooBig { mtu } => mtu,
    };
    if whole.gso_size != 0 && copy.redirect == 0 {
        return Err(Trouble::CutUp);
    }
    if row.has(SessionRow::FLAG_FRAGMENT) {
        return Err(Trouble::Fragment);
    }
    if copy.redirect != 0 || row.has(SessionRow::FLAG_DROP) {
        return Err(Reason::TooBig.into());
    }
    let Some(cut) = whole.cut(template, mtu) else {
        return Err(Reason::TooBig.into());
    };
    if !frame.truncate(frame.frame_len() - (whole.inner_len - cut.inner_len)) {
        return Err(Reason::TooBig.into());
    }
    match look_up(frame, template, cut.wire_len(copy, template)) {
        Path::Resolved { ifindex, source_mac, destination_mac, .. } => {
            Ok((Way { ifindex, source_mac, destination_mac, resolved: true }, cut))
        }
        Path::Unresolved { ifindex, .. } => Ok((unresolved(ifindex), cut)),
        Path::TooBig { .. } => Err(Reason::TooBig.into()),
        Path::NoRoute => Err(Reason::NoRoute.into()),
    }
}

#[inline(always)]
fn unresolved(ifindex: u32) -> Way {
    Way { ifindex, source_mac: [0; 6], destination_mac: [0; 6], resolved: false }
}

#[inline(always)]
fn look_up(frame: Skb, template: &OuterTemplate, wire_len: u32) -> Path {
    // The largest length that can be asked for is too big for any path that the real one is too big for.
    let total_len = if wire_len > u16::MAX as u32 { u16::MAX } else { wire_len as u16 };
    let mut route = Route {
        family: AF_INET,
        source: [0; 4],
        destination: [0; 4],
        tos: 0,
        total_len,
        ifindex: frame.ifindex(),
    };
    if template.family == Family::V4 as u32 {
        let (source, destination) = template.addresses_v4();
        route.source[0] = u32::from_ne_bytes(source);
        route.destination[0] = u32::from_ne_bytes(destination);
        route.tos = template.bytes[1];
    } else {
        let (source, destination) = template.addresses_v6();
        route.family = AF_INET6;
        route.source = to_words(source);
        route.destination = to_words(destination);
    }
    frame.route(&route)
}

/// IPv4 identification: counts per session and CPU; CPUs start apart, so that two of them do not number alike
/// within the life of a fragment.
#[inline(always)]
fn ip_id(number: u64) -> u16 {
    // SAFETY: the helper takes nothing and cannot fail.
    let cpu = unsafe { aya_ebpf::helpers::generated::bpf_get_smp_processor_id() };
    (number as u16).wrapping_add((cpu as u16) << 13)
}

/// # Safety
/// `at` must have room for an Ethernet header.
#[inline(always)]
unsafe fn write_ethernet(at: *mut u8, way: &Way, ether_type: u16) {
    // SAFETY: the caller's promise.
    unsafe {
        at.cast::<[u8; 6]>().write_unaligned(way.destination_mac);
        at.add(6).cast::<[u8; 6]>().write_unaligned(way.source_mac);
        at.add(12).cast::<[u8; 2]>().write_unaligned(ether_type.to_be_bytes());
    }
}

/// The inner link header with every tag in its place: the one beside the frame is the outermost.
///
/// # Safety
/// `at` must have room for [`MAX_LINK_LEN`] bytes.
#[inline(always)]
unsafe fn write_link(
    frame: Skb,
    copy: &CopyRow,
    beside: Option<(u16, u16)>,
    at: *mut u8,
) -> Result<(), Reason> {
    let Some(macs) = frame.load::<12>(0) else {
        return Err(Reason::Malformed);
    };
    let mut rest = 12;
    // SAFETY: the caller's promise; the offsets end at 26.
    unsafe {
        at.cast::<[u8; 12]>().write_unaligned(macs);
        if let Some((tag_protocol, tci)) = beside {
            at.add(12).cast::<[u8; 2]>().write_unaligned(tag_protocol.to_be_bytes());
            at.add(14).cast::<[u8; 2]>().write_unaligned(tci.to_be_bytes());
            rest = 16;
        }
        let read = match copy.network_offset {
            14 => frame.load::<2>(12).map(|bytes| at.add(rest).cast::<[u8; 2]>().write_unaligned(bytes)),
            18 => frame.load::<6>(12).map(|bytes| at.add(rest).cast::<[u8; 6]>().write_unaligned(bytes)),
            _ => frame.load::<10>(12).map(|bytes| at.add(rest).cast::<[u8; 10]>().write_unaligned(bytes)),
        };
        read.ok_or(Reason::Malformed)
    }
}

/// Makes room for the headers. Returns whether the kernel's neighbour layer could take the frame: it wants to
/// know it as IP.
#[inline(always)]
fn make_room(frame: Skb, copy: &CopyRow, template: &OuterTemplate, shape: &Shape) -> Result<bool, Reason> {
    let growth = shape.growth(template);
    let ether_type = copy.ether_type as u16;
    if matches!(ether_type, ethernet::ETHER_TYPE_IPV4 | ethernet::ETHER_TYPE_IPV6) {
        let mut flags = BPF_F_ADJ_ROOM_ENCAP_L2_ETH as u64
            | (shape.link_len as u64) << BPF_ADJ_ROOM_ENCAP_L2_SHIFT
            | if template.family == Family::V4 as u32 {
                BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 as u64
            } else {
                BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 as u64
            };
        flags |= match template.kind() {
            Some(TunnelKind::Vxlan | TunnelKind::Geneve) => BPF_F_ADJ_ROOM_ENCAP_L4_UDP as u64,
            _ => BPF_F_ADJ_ROOM_ENCAP_L4_GRE as u64,
        };
        if shape.gso_size != 0 && !is_tcp(copy) {
            flags |= BPF_F_ADJ_ROOM_FIXED_GSO as u64;
        }
        if frame.make_room(growth, flags) {
            return Ok(true);
        }
    }
    // What is not IP, or is a tunnel's packet already, gets its headers in front of the whole frame. A
    // super-packet would lose its shape that way.
    if shape.gso_size == 0 && frame.make_head_room(growth) {
        return Ok(false);
    }
    Err(Reason::EncapsulationRefused)
}
