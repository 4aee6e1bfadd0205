//! What the kernel shows to a packet socket. In: what is wanted. Out: a classic BPF program that takes every packet
//! which may belong to a wanted tunnel, and few others.
//!
//! Ports are looked at where they stand at a fixed place: behind an IPv4 header without fragments, or directly behind
//! an IPv6 header. Later fragments, IPv6 extension headers, and a second VLAN tag (the kernel takes the first one off)
//! are taken as they are: user space reads on.

use podwire_core::wire::{ethernet, ipv4, protocol};

use super::wanted::Wanted;

// linux/bpf_common.h.
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF_AT_X: u16 = 0x48;
const LOAD_X_HEADER_LENGTH: u16 = 0xb1;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
/// More than any packet has.
const WHOLE: u32 = 0x4_0000;

const IP: u32 = ethernet::HEADER_LEN as u32;
const IPV6_NEXT_HEADER: u32 = IP + 6;
const IPV6_PAYLOAD: u32 = IP + 40;
/// Of the destination port in a UDP header.
const PORT: u32 = 2;

/// An instruction: `struct sock_filter` of linux/filter.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u16,
    /// Instructions to skip.
    pub(super) on_true: u8,
    pub(super) on_false: u8,
    pub(super) operand: u32,
}

/// The program.
pub(super) fn program(wanted: &Wanted) -> Vec<Instruction> {
    let ports: Vec<u32> = wanted.udp_ports().map(u32::from).collect();
    let gre = wanted.takes_gre().then_some(u32::from(protocol::GRE));
    let v4 = v4(&ports, gre);
    let mut program = vec![load(LOAD_HALF, ethernet::ETHER_TYPE_OFFSET as u32)];
    for tag in [ethernet::ETHER_TYPE_VLAN, ethernet::ETHER_TYPE_QINQ] {
        take_if(&mut program, tag.into());
    }
    skip_unless(&mut program, ethernet::ETHER_TYPE_IPV4.into(), v4.len());
    program.extend(v4);
    let v6 = v6(&ports, gre);
    skip_unless(&mut program, ethernet::ETHER_TYPE_IPV6.into(), v6.len());
    program.extend(v6);
    program.push(load(RETURN, 0));
    program
}

/// Each part ends with a verdict.
fn v4(ports: &[u32], gre: Option<u32>) -> Vec<Instruction> {
    let mut part = vec![load(LOAD_BYTE, IP + ipv4::PROTOCOL_OFFSET as u32)];
    gre.into_iter().for_each(|number| take_if(&mut part, number));
    if !ports.is_empty() {
        let mut udp = vec![load(LOAD_HALF, IP + ipv4::FRAGMENT_OFFSET as u32)];
        udp.push(Instruction {
            code: JUMP_ANY_BIT,
            on_true: 0,
            on_false: 1,
            operand: ipv4::FRAGMENT_OFFSET_MASK.into(),
        });
        udp.push(load(RETURN, WHOLE));
        udp.push(load(LOAD_X_HEADER_LENGTH, IP));
        udp.push(load(LOAD_HALF_AT_X, IP + PORT));
        ports.iter().for_each(|port| take_if(&mut udp, *port));
        skip_unless(&mut part, protocol::UDP.into(), udp.len());
        part.extend(udp);
    }
    part.push(load(RETURN, 0));
    part
}

fn v6(ports: &[u32], gre: Option<u32>) -> Vec<Instruction> {
    let mut part = vec![load(LOAD_BYTE, IPV6_NEXT_HEADER)];
    gre.into_iter().for_each(|number| take_if(&mut part, number));
    for number in [
        protocol::HOP_BY_HOP,
        protocol::ROUTING,
        protocol::FRAGMENT,
        protocol::AUTHENTICATION,
        protocol::DESTINATION_OPTIONS,
    ] {
        take_if(&mut part, number.into());
    }
    if !ports.is_empty() {
        let mut udp = vec![load(LOAD_HALF, IPV6_PAYLOAD + PORT)];
        ports.iter().for_each(|port| take_if(&mut udp, *port));
        skip_unless(&mut part, protocol::UDP.into(), udp.len());
        part.extend(udp);
    }
    part.push(load(RETURN, 0));
    part
}

fn load(code: u16, operand: u32) -> Instruction {
    Instruction { code, on_true: 0, on_false: 0, operand }
}

fn take_if(program: &mut Vec<Instruction>, value: u32) {
    program.push(Instruction { code: JUMP_EQUAL, on_true: 0, on_false: 1, operand: value });
    program.push(load(RETURN, WHOLE));
}

/// A conditional jump reaches 255 instructions; a plain one any number.
fn skip_unless(program: &mut Vec<Instruction>, value: u32, count: usize) {
    program.push(Instruction { code: JUMP_EQUAL, on_true: 1, on_false: 0, operand: value });
    program.push(load(JUMP, count as u32));
}

#[cfg(test)]
mod tests;
