//! Keeps the kernel from answering. It sees the packets of a mirror as well and, with nobody listening, would tell
//! the mirror's sender so by ICMP, for each packet. In: what is wanted. Out: sockets that are there and take nothing.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use podwire_core::wire::protocol;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::wanted::Wanted;

/// The sockets; closed on drop.
#[derive(Debug)]
pub struct Quiet(Vec<Socket>);

impl Quiet {
    /// Listens to all wanted ports and protocols. What cannot be listened to is taken by somebody else, who answers
    /// instead, or this kernel lacks the protocol.
    pub fn listen(wanted: &Wanted) -> Self {
        let mut sockets = Vec::new();
        for port in wanted.udp_ports() {
            for any in [SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), (Ipv6Addr::UNSPECIFIED, port).into()]
            {
                match udp(any) {
                    Ok(socket) => sockets.push(socket),
                    Err(error) => tracing::debug!(%any, %error, "the port is not ours"),
                }
            }
        }
        if wanted.takes_gre() {
            for domain in [Domain::IPV4, Domain::IPV6] {
                match raw(domain) {
                    Ok(socket) => sockets.push(socket),
                    Err(error) => tracing::debug!(?domain, %error, "no raw socket"),
                }
            }
        }
        Self(sockets)
    }

    /// How many sockets there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

fn udp(any: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(any), Type::DGRAM, Some(Protocol::UDP))?;
    if any.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    take_nothing(&socket)?;
    socket.bind(&any.into())?;
    Ok(socket)
}

fn raw(domain: Domain) -> std::io::Result<Socket> {
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(protocol::GRE))))?;
    take_nothing(&socket)?;
    Ok(socket)
}

fn take_nothing(socket: &Socket) -> std::io::Result<()> {
    const RETURN_NOTHING: u16 = 0x06;
    socket.attach_filter(&[SockFilter::new(RETURN_NOTHING, 0, 0, 0)])
}
