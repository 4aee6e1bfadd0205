//! Reads bytes with every reader and checks the promises that hold for any input. Panics when one does not.
//!
//! The fuzz targets take this file in as well.

extern crate std;

use std::{format, vec, vec::Vec};

use crate::wire::{
    Layer, Problem, WireError, arp, decap, erspan, ethernet, geneve, gre, icmp, icmpv6, ip, ipv4, ipv6, ndp,
    sctp, tcp, udp, verify, vlan, vxlan,
};

/// Every reader at `at`, whatever the bytes there are meant to be.
pub fn every_reader(frame: &[u8], at: usize) {
    reader!(frame, at, ethernet, |view: ethernet::View<'_>| {
        let _ = view.network().inspect_err(|error| sane(frame, error));
        view.payload_offset()
    });
    reader!(frame, at, vlan, |view: vlan::View<'_>| view.payload_offset());
    reader!(frame, at, arp, |_: arp::View<'_>| at + arp::LEN);
    reader!(frame, at, ipv4, |view: ipv4::View<'_>| {
        items(frame, view.options());
        within(frame, view.frame());
        view.payload_offset()
    });
    reader!(frame, at, ipv6, |view: ipv6::View<'_>| {
        items(frame, view.extensions());
        let _ = view.upper_layer().inspect_err(|error| sane(frame, error));
        within(frame, view.frame());
        view.payload_offset()
    });
    reader!(frame, at, tcp, |view: tcp::View<'_>| {
        items(frame, view.options());
        view.payload_offset()
    });
    reader!(frame, at, udp, |view: udp::View<'_>| {
        within(frame, view.frame());
        view.payload_offset()
    });
    reader!(frame, at, sctp, |view: sctp::View<'_>| {
        items(frame, view.chunks());
        let _ = view.checksum_holds();
        view.payload_offset()
    });
    reader!(frame, at, icmp, |view: icmp::View<'_>| {
        let _ = (view.checksum_holds(), view.echo(), view.next_hop_mtu(), view.is_error());
        view.payload_offset()
    });
    reader!(frame, at, icmpv6, |view: icmpv6::View<'_>| {
        let _ = (view.echo(), view.mtu(), view.is_error());
        view.payload_offset()
    });
    reader!(frame, at, ndp, |view: ndp::View<'_>| {
        items(frame, view.options());
        for option in view.options().flatten() {
            let _ = (option.mac(), option.prefix(), option.mtu());
        }
        // Options are part of what the header writes.
        frame.len()
    });
    reader!(frame, at, vxlan, |view: vxlan::View<'_>| view.payload_offset());
    reader!(frame, at, geneve, |view: geneve::View<'_>| {
        items(frame, view.options());
        view.payload_offset()
    });
    reader!(frame, at, gre, |view: gre::View<'_>| {
        let _ = view.checksum_holds();
        view.payload_offset()
    });
    {
        use erspan::ii;
        reader!(frame, at, ii, |view: ii::View<'_>| view.payload_offset());
        use erspan::iii;
        reader!(frame, at, iii, |view: iii::View<'_>| view.payload_offset());
    }
    for number in [0, 43, 44, 51, 60, 135, 139, 140, 6] {
        match ipv6::extension::Extension::parse(number, frame, at) {
            Ok(extension) => {
                items(frame, extension.options());
                assert_eq!(extension.bytes(), &frame[at..extension.payload_offset()]);
                let _ = (extension.fragment(), extension.segments_left());
            }
            Err(error) => sane(frame, &error),
        }
    }
}

/// A whole frame, from its Ethernet header on.
pub fn frame(frame: &[u8]) {
    let Ok((ether_type, at)) = ethernet::View::parse(frame, 0).and_then(|view| view.network()) else {
        return;
    };
    match ip::View::parse(ether_type, frame, at) {
        Ok(Some(ip)) => {
            assert!(matches!(ip.layer(), Layer::Ipv4 | Layer::Ipv6));
            match ip.transport() {
                Ok(transport) => {
                    within(frame, transport.frame);
                    assert!(transport.offset <= transport.frame.len());
                    every_reader(transport.frame, transport.offset);
                }
                Err(error) => sane(frame, &error),
            }
        }
        Ok(None) => {}
        Err(error) => sane(frame, &error),
    }
    if let Err(error) = verify::checksums(ether_type, frame, at) {
        sane(frame, &error);
    }
}

/// Decapsulates, with and without checksums.
pub fn decapsulate(frame: &[u8]) {
    for verify in [false, true] {
        match decap::decapsulate(frame, &decap::Receiver { verify, ..decap::Receiver::default() }) {
            Ok(found) => {
                let inner = &frame[found.inner.clone()];
                assert!(inner.len() >= ethernet::HEADER_LEN);
                if let decap::Metadata::Geneve { options, .. } = &found.metadata {
                    assert_eq!(options.end, found.inner.start);
                    assert!(options.start <= options.end);
                }
            }
            Err(decap::DecapError::Wire(error)) => sane(frame, &error),
            Err(error) => assert!(!format!("{error}").is_empty()),
        }
    }
}

/// What every error promises: an offset inside the frame, and numbers that do contradict each other.
fn sane(frame: &[u8], error: &WireError) {
    let WireError { offset, needed, had, .. } = *error;
    assert!(offset <= frame.len(), "{error:?} of {} bytes", frame.len());
    match error.problem {
        Problem::Truncated => assert!(had < needed && had <= frame.len() - offset, "{error:?}"),
        Problem::LengthTooSmall => assert!(had < needed, "{error:?}"),
        Problem::LengthTooLarge => assert!(had > needed, "{error:?}"),
        Problem::Unsupported | Problem::Checksum => assert_ne!(had, needed, "{error:?}"),
        _ => panic!("{error:?} from a reader"),
    }
    assert!(format!("{error}").starts_with(error.layer.as_str()));
}

/// A list ends, and ends with its first error.
fn items<T>(frame: &[u8], list: impl Iterator<Item = Result<T, WireError>>) {
    let results: Vec<_> = list.take(frame.len() + 2).collect();
    assert!(results.len() <= frame.len() + 1);
    for (index, result) in results.iter().enumerate() {
        if let Err(error) = result {
            sane(frame, error);
            assert_eq!(index + 1, results.len());
        }
    }
}

fn within(frame: &[u8], part: &[u8]) {
    assert_eq!(part, &frame[..part.len()]);
}

/// Parses, runs the view's own checks, and writes what was read: reading that again gives the same.
macro_rules! reader {
    ($frame:expr, $at:expr, $protocol:ident, $check:expr) => {
        match $protocol::View::parse($frame, $at) {
            Ok(view) => {
                let payload_offset = $check(view);
                assert!(payload_offset <= $frame.len());
                let mut out = vec![0; $frame.len() + 64];
                let len = view.header().write(&mut out).unwrap();
                assert_eq!(len, payload_offset - $at);
                let payload = &$frame[payload_offset..];
                out[len..][..payload.len()].copy_from_slice(payload);
                out.truncate(len + payload.len());
                assert_eq!($protocol::View::parse(&out, 0).unwrap().header(), view.header());
            }
            Err(error) => sane($frame, &error),
        }
    };
}
use reader;
