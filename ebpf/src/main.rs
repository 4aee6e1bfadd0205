//! The BPF programs of podwire: hooks, maps, verdicts. The stages themselves are `podwire_core::stage`.
//!
//! | program | hook | in | out |
//! |---|---|---|---|
//! | `from_pod` | tcx ingress of an endpoint's host-side interface | what the pod sent | on to the next program; copies |
//! | `to_pod` | tcx egress of the same interface | what the pod will receive | on to the next program; copies |
//! | `leave` | after `from_pod` | what the pod sent | at a pod, in the overlay, or on, with an Egress mark |
//! | `answer` | after `leave` | a pod's question for a neighbour | the answer, at the pod |
//! | `deliver` | after `leave` and `from_overlay` | what a pod of this node will receive | at the pod |
//! | `from_overlay` | tcx ingress of the overlay device | what came from another node | at a pod, or on |
//! | `to_overlay` | tcx egress of the overlay device | what goes to another node | in its tunnel |
//! | `mirror` | tcx egress of the private mirror device | a copy | the copy, dressed, to its target |
//! | `segment` | tcx ingress of the segmenting device's far end | a piece of a copy | the piece, dressed, to its target |
//! | `returned` | tcx ingress of a return port | a packet from a tool | the packet, at the hook where it left |
//! | `to_uplink` | tcx egress of the uplink, while packets are traced | what leaves | the same, without its tag |
//! | `kernel_drops` | tracepoint `kfree_skb`, while packets are traced | what the kernel's own stack drops | |
//! | `from_uplink` | tcx ingress of the uplink | a packet from outside | the same, out of its tunnel if that is a return port |
#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]
#![allow(missing_docs, reason = "aya makes a second function of each program, undocumented")]

mod atomic;
mod global;
mod handover;
mod held;
mod kernel;
mod leave;
mod live;
mod maps;
mod mirror;
mod overlay;
mod pod;
mod reader;
mod relay;
mod returned;
mod segment;
mod skb;
mod tables;
mod uplink;
mod verdict;
mod watch;

use aya_ebpf::{
    macros::{classifier, raw_tracepoint},
    programs::{RawTracePointContext, TcContext},
};
use podwire_core::abi::Direction;

/// What the pod sent.
#[classifier]
pub fn from_pod(ctx: TcContext) -> i32 {
    pod::hook(&ctx, Direction::Egress)
}

/// What the pod will receive.
#[classifier]
pub fn to_pod(ctx: TcContext) -> i32 {
    pod::hook(&ctx, Direction::Ingress)
}

/// A copy on its way to its target.
#[classifier]
pub fn mirror(ctx: TcContext) -> i32 {
    mirror::hook(&ctx)
}

/// A piece of a super-packet on its way to its target.
#[classifier]
pub fn segment(ctx: TcContext) -> i32 {
    segment::hook(&ctx)
}

/// A packet that a tool sent back.
#[classifier]
pub fn returned(ctx: TcContext) -> i32 {
    returned::hook(&ctx)
}

/// A packet from outside; tools send back through tunnels.
#[classifier]
pub fn from_uplink(ctx: TcContext) -> i32 {
    uplink::hook(&ctx)
}

/// What leaves by the uplink.
#[classifier]
pub fn to_uplink(ctx: TcContext) -> i32 {
    uplink::leaving(&ctx)
}

/// Where a pod's packet goes; `from_pod` and `deliver` end in it or come from it by a tail call.
#[classifier]
pub fn leave(ctx: TcContext) -> i32 {
    leave::hook(&ctx)
}

/// A pod's question for a neighbour; `leave` ends in it by a tail call.
#[classifier]
pub fn answer(ctx: TcContext) -> i32 {
    leave::reply(&ctx)
}

/// The stages of a pod that gets a packet from podwire itself.
#[classifier]
pub fn deliver(ctx: TcContext) -> i32 {
    leave::deliver(&ctx)
}

/// What came from another node.
#[classifier]
pub fn from_overlay(ctx: TcContext) -> i32 {
    overlay::arrived(&ctx)
}

/// What goes to another node.
#[classifier]
pub fn to_overlay(ctx: TcContext) -> i32 {
    overlay::entering(&ctx)
}

/// What the kernel's own stack drops.
#[raw_tracepoint(tracepoint = "kfree_skb")]
pub fn kernel_drops(ctx: RawTracePointContext) -> i32 {
    kernel::hook(&ctx)
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
