//! Verdicts as the kernel's numbers: the whole fail policy in one screen.

use aya_ebpf::helpers::generated as helper;
use podwire_core::stage::Verdict;

/// On to the next program of the hook, ours or not (`TCX_NEXT`, `TC_ACT_UNSPEC`). Never `TC_ACT_OK`: that
/// would end the hook for programs of others.
pub const NEXT: i32 = -1;

/// The frame ends here (`TCX_DROP`, `TC_ACT_SHOT`).
pub const DROP: i32 = 2;

/// The number to return from a pod's hook.
#[inline(always)]
pub fn code(verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Pass => NEXT,
        // SAFETY: the helper takes numbers only; what it cannot do it reports when the packet leaves.
        Verdict::Redirect { ifindex } => unsafe { helper::bpf_redirect(ifindex, 0) as i32 },
        Verdict::Drop(_) => DROP,
    }
}
