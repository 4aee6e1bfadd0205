//! A small message there and back, again and again. In: two namespaces. Out: the time that each exchange took.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use podwire_harness::NetNs;

/// Payload bytes of a message.
const SIZE: usize = 64;
const PORT: u16 = 5202;
const PATIENCE: Duration = Duration::from_secs(5);
/// Both ends run here: an exchange takes the time of its way then, not that of waking another processor.
const CPU: usize = 0;

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Tcp,
    Udp,
}

/// A conversation.
#[derive(Clone, Debug)]
pub struct PingPong {
    pub destination: String,
    pub carrier: Carrier,
    pub exchanges: usize,
}

impl PingPong {
    /// Runs it. A datagram that is lost ends it: its exchange would have no time.
    pub fn run(&self, from: &NetNs, to: &NetNs) -> Result<Vec<Duration>> {
        let server = SocketAddr::new(self.destination.parse::<IpAddr>()?, PORT);
        let count = self.exchanges;
        match self.carrier {
            Carrier::Tcp => {
                let listener = to.enter(move || Ok(TcpListener::bind(server)?))?;
                let answers = to.enter_later(move || stay().and_then(|()| serve_stream(&listener, count)))?;
                let times = from.enter(move || {
                    stay()?;
                    let mut stream = TcpStream::connect_timeout(&server, PATIENCE).context("connecting")?;
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    timed(count, |message| {
                        stream.write_all(message)?;
                        Ok(stream.read_exact(message)?)
                    })
                })?;
                answers.join().ok().context("the server panicked")??;
                Ok(times)
            }
            Carrier::Udp => {
                let socket = to.enter(move || Ok(UdpSocket::bind(server)?))?;
                let answers =
                    to.enter_later(move || stay().and_then(|()| serve_datagrams(&socket, count)))?;
                let times = from.enter(move || {
                    stay()?;
                    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
                    socket.connect(server)?;
                    socket.set_read_timeout(Some(PATIENCE))?;
                    timed(count, |message| {
                        socket.send(message)?;
                        socket.recv(message).context("a datagram is lost").map(drop)
                    })
                })?;
                answers.join().ok().context("the server panicked")??;
                Ok(times)
            }
        }
    }
}

/// Keeps this thread on [`CPU`].
fn stay() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(CPU)?;
    sched_setaffinity(Pid::from_raw(0), &cpus).context("pinning a thread")
}

fn timed(count: usize, mut exchange: impl FnMut(&mut [u8]) -> Result<()>) -> Result<Vec<Duration>> {
    let mut message = [0; SIZE];
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let started = Instant::now();
        exchange(&mut message)?;
        times.push(started.elapsed());
    }
    Ok(times)
}

fn serve_stream(listener: &TcpListener, count: usize) -> Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut message = [0; SIZE];
    for _ in 0..count {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
    Ok(())
}

fn serve_datagrams(socket: &UdpSocket, count: usize) -> Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut message = [0; SIZE];
    for _ in 0..count {
        let (len, peer) = socket.recv_from(&mut message)?;
        socket.send_to(&message[..len], peer)?;
    }
    Ok(())
}
