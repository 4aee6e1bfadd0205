//! Return ports. In: a frame that a tool sent back. Out: the frame at the hook where it left, with the mark and
//! the priority that it had, and a tag that keeps it from being redirected again.

use aya_ebpf::programs::TcContext;
use podwire_core::{
    abi::{Action, Component, Direction, Reason},
    stage::{Beside, RETURNING, Returned, Tables, Tag, returned},
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
            let unmarked = mark == 0 && matches!(direction, Direction::Egress);
            frame.set_mark(if unmarked { RETURNING } else { mark });
            frame.set_priority(priority);
            frame.set_tag(tag);
            verdict::to_hook(ifindex, direction)
        }
        Returned::Drop(Reason::ReturnUnknown) => unknown,
        Returned::Drop(_) => verdict::DROP,
    }
}

/// What the kernel keeps beside a packet at a pod's hook, as far as it can be believed; the rest is taken off.
#[inline(always)]
pub fn beside(packet: Skb, direction: Direction, ifindex: u32) -> Beside {
    let (mark, tag) = (packet.mark(), packet.tag());
    if !tag.is_believed(direction, mark) {
        packet.set_tag(Tag(0));
        return Beside { ifindex, mark, tag: Tag(0) };
    }
    if tag.is_back() && mark == RETURNING {
        packet.set_mark(0);
        return Beside { ifindex, mark: 0, tag };
    }
    Beside { ifindex, mark, tag }
}
