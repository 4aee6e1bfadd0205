//! The XDP program in front of AF_XDP workers.
//!
//! | program | hook | in | out |
//! |---|---|---|---|
//! | `to_worker` | XDP of a collector's interface or of a tool's end of an internal port | a frame | to the socket of its queue; where no worker takes it, the stated action |
#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]
#![allow(missing_docs, reason = "aya makes a second function of each program, undocumented")]

#[path = "../atomic.rs"]
#[allow(dead_code, reason = "the datapath's programs need more of it")]
mod atomic;
mod frame;
mod maps;
mod queue;

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
use podwire_core::xsk::{self, ConfigRow, Found, Role, find};

use crate::{frame::Frame, queue::Queue};

/// A frame that arrived.
#[xdp(frags)]
pub fn to_worker(ctx: XdpContext) -> u32 {
    let Some(config) = maps::CONFIG.get(0) else {
        return xdp_action::XDP_PASS;
    };
    let frame = Frame::of(&ctx);
    let Some(queue) = Queue::of(&ctx, config) else {
        // A queue beyond those that can have a worker is one without: an inspector's action holds for it too.
        return if config.role == Role::Inspector as u32 {
            queue::act(config.action)
        } else {
            xdp_action::XDP_PASS
        };
    };
    if config.role == Role::Inspector as u32 {
        return queue.give(config, &frame);
    }
    collect(config, &queue, &frame)
}

/// Which part of a datagram a fragment is.
enum Part {
    /// The first, of a tunnel that is wanted.
    First,
    /// The first of something else.
    OtherFirst,
    Later,
}

#[inline(always)]
fn collect(config: &ConfigRow, queue: &Queue, frame: &Frame) -> u32 {
    let (fragment, part) = match find(frame, config) {
        Found::Other => return xdp_action::XDP_PASS,
        Found::Whole => return queue.give(config, frame),
        Found::First(fragment) => (fragment, Part::First),
        Found::OtherFirst(fragment) => (fragment, Part::OtherFirst),
        Found::Later(fragment) => (fragment, Part::Later),
    };
    let Some(key) = fragment.key(frame) else {
        return xdp_action::XDP_PASS;
    };
    let now = queue::now();
    match part {
        // The rest goes where the first went: the stack cannot do with half a packet either.
        Part::First => {
            let verdict = queue.give(config, frame);
            if verdict == xdp_action::XDP_REDIRECT {
                let _ = maps::FRAGMENTS.insert(key, now, 0);
            }
            verdict
        }
        // Identifications come again.
        Part::OtherFirst => {
            let _ = maps::FRAGMENTS.remove(key);
            xdp_action::XDP_PASS
        }
        Part::Later => match queue::first_came(key) {
            Some(since) if now.wrapping_sub(since) < xsk::FRAGMENT_TIME => queue.give(config, frame),
            _ => {
                queue.count_orphan();
                xdp_action::XDP_PASS
            }
        },
    }
}

/// The kernel allows helpers marked GPL-only to programs that declare a compatible licence.
#[cfg_attr(target_arch = "bpf", unsafe(link_section = "license"), unsafe(no_mangle))]
pub static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// On the host the crate only exists to be checked by the compiler and its lints.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
