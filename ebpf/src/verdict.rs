//! Verdicts as the kernel's numbers: the whole fail policy in one screen.

use aya_ebpf::helpers::generated as helper;
use podwire_core::{abi::Direction, stage::Verdict};

/// On to the next program of the hook, ours or not (`TCX_NEXT`, `TC_ACT_UNSPEC`). Never `TC_ACT_OK`: that
/// would end the hook for programs of others.
pub const NEXT: i32 = -1;

/// The frame ends here (`TCX_DROP`, `TC_ACT_SHOT`).
pub const DROP: i32 = 2;

/// `BPF_F_INGRESS`: as if the frame had been received by the device.
const INGRESS: u64 = 1;

/// No device has this index.
const NOWHERE: u32 = 0;

/// The number to return from a pod's hook.
#[inline(always)]
pub fn code(verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Pass => NEXT,
        Verdict::Taken => taken(),
        Verdict::Drop(_) => DROP,
    }
}

/// The frame ends here because its clone went on. A drop would tell a local sender that its packet was lost,
/// and TCP would send it again; a redirect to nowhere ends it without a word (`skb_do_redirect`).
#[inline(always)]
pub fn taken() -> i32 {
    // SAFETY: the helper takes numbers only.
    unsafe { helper::bpf_redirect(NOWHERE, 0) as i32 }
}

/// Into the other end of a veth pair, in its network namespace (`skb_do_redirect`).
#[inline(always)]
pub fn to_peer(ifindex: u32) -> i32 {
    // SAFETY: as above.
    unsafe { helper::bpf_redirect_peer(ifindex, 0) as i32 }
}

/// On to the hook of this direction at a pod's interface.
#[inline(always)]
pub fn to_hook(ifindex: u32, direction: Direction) -> i32 {
    let flags = match direction {
        Direction::Egress => INGRESS,
        Direction::Ingress => 0,
    };
    // SAFETY: as above.
    unsafe { helper::bpf_redirect(ifindex, flags) as i32 }
}
