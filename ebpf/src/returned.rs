//! Return ports. In: a frame that a tool sent back. Out: the frame at the hook where it left, with the mark and
//! the priority that it had, and a tag that keeps it from being redirected again.

use aya_ebpf::programs::TcContext;
use podwire_core::{
    abi::{Action, Component, Reason},
    stage::{Returned, Tables, returned},
};

use crate::{
    skb::Skb,
    tables::Maps,
    verdict,
    watch::{self, Note},
};

#[inline(always)]
pub fn hook(ctx: &TcContext) -> i32 {
    let frame = Skb::new(ctx);
    frame.pull_headers();
    match Maps.return_port(frame.ifindex()) {
        // What nobody sent away is the device's own traffic.
        Some(returns) => back(frame, returns, verdict::NEXT),
        None => verdict::NEXT,
    }
}

/// `unknown`: what becomes of a frame that nobody sent away.
#[inline(always)]
pub fn back(frame: Skb, returns: u32, unknown: i32) -> i32 {
    match returned(returns, &frame, &Maps) {
        Returned::Back { ifindex, direction, mark, priority, tag, policy } => {
            let note = Note::new(Component::TrafficControl, Action::Returned, Maps.generation(), ifindex);
            watch::note(frame, Note { policy: policy + 1, ..note });
            frame.set_mark(mark);
            frame.set_priority(priority);
            frame.set_tag(tag);
            verdict::to_hook(ifindex, direction)
        }
        Returned::Drop(Reason::ReturnUnknown) => unknown,
        Returned::Drop(_) => verdict::DROP,
    }
}
