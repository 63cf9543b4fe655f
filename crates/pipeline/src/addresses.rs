//! Which addresses a request on somebody's behalf may go to. A user who may name an address must not reach what only this machine or
//! its network can reach: the check is on the addresses that a name leads to, and the caller connects to these and no others.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Whether an address belongs to this machine or its network, or to nobody.
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => is_private_v4(address),
            None => is_private_v6(address),
        },
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        // Behind a carrier's translation; benchmarks; protocol assignments; reserved.
        || (a == 100 && (64..128).contains(&b))
        || (a == 198 && (18..20).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || a >= 240
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = match segments {
        // The IPv4 address that a packet ends up at: 6to4, NAT64, and the compatible and translated forms.
        [0x2002, high, low, ..]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        // ISATAP, under any prefix.
        | [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some((high, low)),
        _ => None,
    };
    if let Some((high, low)) = embedded {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        return is_private_v4(Ipv4Addr::new(a, b, c, d));
    }
    // Global unicast is 2000::/3. Of it, 2001::/23 is for protocols (Teredo, benchmarks), the others are for documents.
    !(0x2000..0x4000).contains(&segments[0])
        || (segments[0] == 0x2001 && segments[1] < 0x200)
        || (segments[0] == 0x2001 && segments[1] == 0xdb8)
        || (segments[0] == 0x3fff && segments[1] < 0x1000)
}

/// The addresses that a name leads to, when all of them are public.
pub async fn public_addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if is_local_name(host) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{host} is a name of this machine"),
        ));
    }
    let addresses = all_addresses(host, port).await?;
    match addresses.iter().find(|address| is_private(address.ip())) {
        None => Ok(addresses),
        Some(private) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{host} leads to {}, an address of this machine or its network", private.ip()),
        )),
    }
}

/// Whether a name always means this machine (RFC 6761), whatever a resolver makes of it now.
fn is_local_name(host: &str) -> bool {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// The addresses that a name leads to.
pub async fn all_addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("{host} leads nowhere")));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_and_its_network_are_private() {
        let private = [
            "127.0.0.1",
            "127.9.9.9",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "192.0.0.8",
            "240.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "::127.0.0.1",
            "::10.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b:1::1",
            "2001::1",
            "2001:4860::5efe:a00:1",
            "fec0::1",
            "5f00::1",
        ];
        for text in private {
            assert!(is_private(text.parse().expect(text)), "{text}");
        }
        for text in [
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "1.1.1.1",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::",
            "::8.8.8.8",
            "2001:4860:4860::8888",
        ] {
            assert!(!is_private(text.parse().expect(text)), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_here_is_refused() {
        for name in ["localhost", "localhost.", "LOCALHOST", "foo.localhost", "foo.bar.LocalHost."] {
            let error = public_addresses(name, 80).await.expect_err("loopback");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}");
        }
        assert!(public_addresses("[::1]", 80).await.is_err());
        assert_eq!(all_addresses("127.0.0.1", 80).await.expect("an address")[0].port(), 80);
    }
}
