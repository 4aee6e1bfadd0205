//! Destinations. In: prefixes, each with a target. Out: a trie for each family, in which the row of an address is the
//! number of the target with the longest prefix; 0 for none.

use ipnet::IpNet;
use podwire_core::abi::{Entry, NodeRow, PrefixRow};

use super::error::CompileError;
use super::rows::RowId;
use super::rule::Destinations;
use super::sources::block_of;
use super::trie::{Piece, Tries};

/// Tries of their own: their rows are targets.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Routes {
    pub(super) nodes: Vec<NodeRow>,
    pub(super) prefixes: Vec<PrefixRow>,
    /// IPv4, IPv6.
    pub(super) roots: [Entry; 2],
}

/// # Errors
/// The tables of tries may be too small.
pub(super) fn compile(destinations: &Destinations) -> Result<Routes, CompileError> {
    let mut tries = Tries::default();
    let of_family = |v4: bool| {
        let of = destinations.prefixes.iter().filter(|(prefix, _)| matches!(prefix, IpNet::V4(_)) == v4);
        pieces(of.map(|(prefix, target)| (block_of(prefix), *target)).collect())
    };
    let roots = [tries.root(&of_family(true), 0)?, tries.root(&of_family(false), 0)?];
    let (nodes, prefixes) = tries.into_rows();
    Ok(Routes { nodes, prefixes, roots })
}

/// The keys in pieces, each with the target of the smallest block around it. Blocks are nested or apart.
fn pieces(mut blocks: Vec<((u128, u128), u32)>) -> Vec<Piece> {
    // Larger blocks before those within them; of equal ones the last counts.
    blocks.sort_by_key(|&((first, last), _)| (first, std::cmp::Reverse(last)));
    let mut pieces = vec![Piece { start: 0, row: RowId::EMPTY }];
    let mut around: Vec<(u128, u32)> = Vec::new();
    for ((first, last), target) in blocks {
        leave(&mut around, Some(first), &mut pieces);
        around.push((last, target));
        set(&mut pieces, first, target);
    }
    leave(&mut around, None, &mut pieces);
    pieces
}

/// Ends the blocks that end before a key, or all.
fn leave(around: &mut Vec<(u128, u32)>, before: Option<u128>, pieces: &mut Vec<Piece>) {
    while let Some(&(last, _)) = around.last() {
        if before.is_some_and(|key| last >= key) {
            return;
        }
        around.pop();
        if let Some(next) = last.checked_add(1) {
            // Of blocks that end together the outermost is left last.
            set(pieces, next, around.last().map_or(0, |&(_, target)| target));
        }
    }
}

/// From this key on, another target.
fn set(pieces: &mut Vec<Piece>, start: u128, target: u32) {
    if pieces.last().is_some_and(|piece| piece.start == start) {
        pieces.pop();
    }
    if pieces.last().is_none_or(|piece| piece.row.0 != target) {
        pieces.push(Piece { start, row: RowId(target) });
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ipnet::IpNet;
    use podwire_core::abi::{Entry, EntryKind};

    use super::{Destinations, Routes, compile};

    /// The target of an address, as the datapath finds it.
    fn look_up(routes: &Routes, address: IpAddr) -> u32 {
        let (root, bytes) = match address {
            IpAddr::V4(address) => (routes.roots[0], address.octets().to_vec()),
            IpAddr::V6(address) => (routes.roots[1], address.octets().to_vec()),
        };
        let mut key = [0; 16];
        key[..bytes.len()].copy_from_slice(&bytes);
        let key = u128::from_be_bytes(key);
        let mut entry = root;
        for depth in 0..17u32 {
            match entry.kind() {
                EntryKind::Row | EntryKind::Any => return entry.index(),
                EntryKind::Node => {
                    let byte = (key >> (120 - 8 * depth)) as u8;
                    entry = Entry(routes.nodes[entry.index() as usize][usize::from(byte)]);
                }
                EntryKind::Prefix => {
                    let row = routes.prefixes[entry.index() as usize];
                    let (value, mask) = (
                        u128::from(row.high) << 64 | u128::from(row.low),
                        u128::from(row.mask_high) << 64 | u128::from(row.mask_low),
                    );
                    return if (key ^ value) & mask == 0 { row.hit } else { row.miss };
                }
            }
        }
        panic!("no end");
    }

    #[test]
    fn the_longest_prefix_counts() {
        let list = [
            ("10.10.2.0/24", 1),
            ("10.10.0.0/16", 2),
            ("10.10.2.5/32", 3),
            ("10.10.2.255/32", 4),
            ("10.10.1.5/32", 5),
            ("10.10.1.6/32", 6),
            ("255.255.255.255/32", 7),
            ("fd00:10:2::/64", 8),
            ("fd00:10:2::5/128", 9),
        ];
        let prefixes: Vec<(IpNet, u32)> =
            list.iter().map(|(prefix, target)| (prefix.parse().unwrap(), *target)).collect();
        let routes = compile(&Destinations { prefixes: prefixes.clone() }).unwrap();
        let probes = [
            "10.10.2.4",
            "10.10.2.5",
            "10.10.2.6",
            "10.10.2.255",
            "10.10.3.0",
            "10.10.1.4",
            "10.10.1.5",
            "10.10.1.6",
            "10.10.1.7",
            "10.9.255.255",
            "10.11.0.0",
            "0.0.0.0",
            "255.255.255.255",
            "255.255.255.254",
            "fd00:10:2::4",
            "fd00:10:2::5",
            "fd00:10:2::6",
            "fd00:10:3::",
            "::",
            "fd00:10:1:ffff::",
        ];
        for probe in probes {
            let address: IpAddr = probe.parse().unwrap();
            let holding = prefixes.iter().filter(|(prefix, _)| prefix.contains(&address));
            let longest =
                holding.max_by_key(|(prefix, _)| prefix.prefix_len()).map_or(0, |(_, target)| *target);
            assert_eq!(look_up(&routes, address), longest, "{probe}");
        }
    }
}
