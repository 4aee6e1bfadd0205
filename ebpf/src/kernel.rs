//! What the kernel's own stack drops. In: a packet that is freed, with the kernel's reason. Out: an observation, when the
//! packet is traced.
//!
//! The tracepoint interrupts whatever runs, podwire's own programs among it: nothing here is shared with them but the
//! counters, each of which is read and written in two instructions that follow each other.

use aya_ebpf::{helpers::generated as helper, programs::RawTracePointContext};
use podwire_core::{
    abi::{Action, Class, Component, INJECTED, KernelRow, Mode, ObservationRow, TraceRow, limits},
    stage::{self, Facts, Packet, State, Tables, trace},
    wire::ethernet,
};

use crate::{
    maps::{self, KernelDraft},
    tables::Maps,
    watch,
};

/// A packet that was copied out of the kernel's memory.
struct Copied(*const u8);

impl Packet for Copied {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        limits::HEADER_WINDOW as u32
    }

    #[inline(always)]
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        // The compiler would leave out what the verifier wants to see.
        let offset = core::hint::black_box(offset);
        if offset > limits::HEADER_WINDOW - N {
            return None;
        }
        // SAFETY: N bytes from there lie within the row.
        Some(unsafe { self.0.add(offset).cast::<[u8; N]>().read_unaligned() })
    }
}

#[inline(always)]
pub fn hook(ctx: &RawTracePointContext) -> i32 {
    if watch::is_on(false) {
        look(ctx.arg::<u64>(0), ctx.arg::<u64>(2) as u32);
    }
    0
}

/// A number of the kernel's.
#[inline(always)]
fn read<T: Copy + Default>(at: u64) -> Option<T> {
    let mut value = T::default();
    // SAFETY: the helper checks what it reads; the value is as long as said.
    let result = unsafe {
        helper::bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, at as *const _)
    };
    if result == 0 { Some(value) } else { None }
}

#[inline(always)]
fn look(skb: u64, reason: u32) -> Option<()> {
    let row = maps::KERNEL.get(0)?;
    if row.usable == 0 || reason == row.own[0] || reason == row.own[1] {
        return None;
    }
    // It has gone on as a clone, or is a copy.
    let mark = read::<u32>(skb + row.mark as u64)?;
    if mark != 0 && (mark == INJECTED || mark == Maps.copy_mark()) {
        return None;
    }
    let dev = read::<u64>(skb + row.dev as u64)?;
    if dev == 0 || !is_here(dev, row) {
        return None;
    }
    let scratch = maps::KERNEL_DRAFT.get_ptr_mut(0)?;
    // SAFETY: a per-CPU row; this program is not interrupted by itself.
    let scratch = unsafe { &mut *scratch };
    copy(skb, row, scratch)?;
    tell(skb, row, scratch, reason, read::<u32>(dev + row.ifindex as u64)?)
}

/// Whether a device is in this node's network namespace.
#[inline(always)]
fn is_here(dev: u64, row: &KernelRow) -> bool {
    let number = read::<u64>(dev + row.nd_net as u64).and_then(|net| read::<u32>(net + row.inum as u64));
    number == Some(row.netns)
}

/// Copies the packet from its network header on.
#[inline(always)]
fn copy(skb: u64, row: &KernelRow, scratch: &mut KernelDraft) -> Option<()> {
    const AT: usize = ethernet::HEADER_LEN;
    let head = read::<u64>(skb + row.head as u64)?;
    let start = head + read::<u16>(skb + row.network_header as u64)? as u64;
    let bytes = &mut scratch.bytes;
    // SAFETY: the helper checks what it reads; the row is as long as said.
    let result = unsafe {
        helper::bpf_probe_read_kernel(
            bytes.as_mut_ptr().add(AT).cast(),
            (limits::HEADER_WINDOW - AT) as u32,
            start as *const _,
        )
    };
    if result != 0 {
        return None;
    }
    let [high, low] = match bytes[AT] >> 4 {
        4 => ethernet::ETHER_TYPE_IPV4.to_be_bytes(),
        6 => ethernet::ETHER_TYPE_IPV6.to_be_bytes(),
        _ => return None,
    };
    (bytes[12], bytes[13]) = (high, low);
    Some(())
}

#[inline(always)]
fn tell(skb: u64, kernel: &KernelRow, scratch: &mut KernelDraft, reason: u32, ifindex: u32) -> Option<()> {
    let packet = Copied(scratch.bytes.as_ptr());
    scratch.facts = stage::parse(&packet);
    let (facts, draft): (&Facts, _) = (&scratch.facts, &mut scratch.draft);
    if matches!(facts.mode, Mode::Other) {
        return None;
    }
    let tag = trace::tag(&packet, facts);
    let now = Maps.now();
    let trace = watch::find(draft, &packet, facts, tag).filter(|trace| trace.until > now)?;
    let row = &mut draft.row;
    *row = ObservationRow {
        time_ns: now,
        source: [facts.source.high, facts.source.low],
        destination: [facts.destination.high, facts.destination.low],
        family: trace::family(facts),
        ports: trace::ports(facts),
        protocol: facts.protocol as u32,
        trace: trace.number,
        // SAFETY: the helper takes nothing and cannot fail.
        cpu: unsafe { helper::bpf_get_smp_processor_id() },
        component: Component::Forwarding as u32,
        action: Action::Dropped as u32,
        reason: reason | ObservationRow::KERNEL_REASON,
        ifindex,
        len: read::<u32>(skb + kernel.len as u64)?,
        ttl: trace::hops(&packet, facts),
        tag,
        identity: trace::identity(&packet, facts),
        flags: trace.flags & TraceRow::FLAG_REPLY | ObservationRow::FLAG_LAST,
        ..ObservationRow::default()
    };
    watch::send(Class::Traces, row, 0);
    Some(())
}
