//! One fragment in its frame, and the whole packet in a frame like it.

use std::net::IpAddr;

use podwire_core::wire::{checksum, ethernet, ip, ipv4, ipv6};

/// Which datagram a fragment belongs to (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id {
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    /// IPv4 only.
    protocol: u8,
}

/// What comes before the datagram's bytes: Ethernet header, IP header, and those of IPv6 that are not fragmented. The
/// fragment header is left out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    pub(super) bytes: &'a [u8],
    /// Where the IP header begins.
    pub(super) at: usize,
    /// IPv6 only.
    pub(super) next: Option<NextHeader>,
}

/// Where the number of what follows is written, and the number.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextHeader {
    at: usize,
    number: u8,
}

/// A fragment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) head: Head<'a>,
    /// Where its bytes belong in the datagram.
    pub(super) offset: usize,
    pub(super) more: bool,
    pub(super) data: &'a [u8],
}

impl<'a> Part<'a> {
    pub(super) fn parse(frame: &'a [u8]) -> Option<(Id, Self)> {
        let (kind, at) = ethernet::View::parse(frame, 0).ok()?.network().ok()?;
        match ip::View::parse(kind, frame, at).ok()?? {
            ip::View::V4(ip) => Self::v4(frame, at, &ip),
            ip::View::V6(ip) => Self::v6(frame, at, &ip),
        }
    }

    fn v4(frame: &'a [u8], at: usize, ip: &ipv4::View<'a>) -> Option<(Id, Self)> {
        let id = Id {
            source: ip.source().into(),
            destination: ip.destination().into(),
            id: ip.id().into(),
            protocol: ip.protocol(),
        };
        let head = Head { bytes: frame.get(..ip.payload_offset())?, at, next: None };
        let (offset, more) = (ip.fragment_offset(), ip.more_fragments());
        Some((id, Self { head, offset, more, data: ip.payload() }))
    }

    fn v6(frame: &'a [u8], at: usize, ip: &ipv6::View<'a>) -> Option<(Id, Self)> {
        let mut pointer = at + ipv6::NEXT_HEADER_OFFSET;
        for extension in ip.extensions() {
            let extension = extension.ok()?;
            let begin = extension.payload_offset() - extension.bytes().len();
            if let Some(fragment) = extension.fragment() {
                let id = Id {
                    source: ip.source().into(),
                    destination: ip.destination().into(),
                    id: fragment.id,
                    protocol: 0,
                };
                let next = Some(NextHeader { at: pointer, number: fragment.next_header });
                let head = Head { bytes: frame.get(..begin)?, at, next };
                let data = ip.frame().get(extension.payload_offset()..)?;
                return Some((id, Self { head, offset: fragment.offset.into(), more: fragment.more, data }));
            }
            pointer = begin;
        }
        None
    }
}

impl Head<'_> {
    /// Bytes that the length field counts besides the datagram's.
    fn counted(&self) -> usize {
        let ip = self.bytes.len() - self.at;
        if self.next.is_some() { ip - ipv6::HEADER_LEN } else { ip }
    }

    /// Most bytes that a datagram behind this head may have.
    pub(super) fn room(&self) -> usize {
        usize::from(u16::MAX).saturating_sub(self.counted())
    }

    /// The bytes, as before a datagram of `len` bytes that was never cut; there must be room for so many.
    pub(super) fn before(&self, len: usize) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.bytes.len() + len);
        head.extend_from_slice(self.bytes);
        let (at, length) = (self.at, (self.counted() + len) as u16);
        if let Some(next) = self.next {
            put(&mut head, at + ipv6::PAYLOAD_LENGTH_OFFSET, length);
            if let Some(byte) = head.get_mut(next.at) {
                *byte = next.number;
            }
        } else {
            put(&mut head, at + ipv4::TOTAL_LENGTH_OFFSET, length);
            put(&mut head, at + ipv4::FRAGMENT_OFFSET, 0);
            put(&mut head, at + ipv4::CHECKSUM_OFFSET, 0);
            let sum = checksum::full(head.get(at..).unwrap_or_default());
            put(&mut head, at + ipv4::CHECKSUM_OFFSET, sum);
        }
        head
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}
