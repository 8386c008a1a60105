// Package ssrf refuses connections to addresses that are not public. The server uses it wherever an
// account names the host, so that no request reaches a service behind the operator's firewall
// (server-side request forgery).
package ssrf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	indigo "github.com/bluesky-social/indigo/util/ssrf"
)

// ErrForbidden says that the server does not connect to an address.
var ErrForbidden = errors.New("address is not public")

// Control returns a net.Dialer.Control that allows only connections to port 443 of public
// addresses. With allowLoopback, it also allows every port of this machine. It checks the address
// when the socket connects, after DNS, so a name that changes its address gains nothing. The error
// is ErrForbidden.
func Control(allowLoopback bool) func(network, address string, _ syscall.RawConn) error {
	return func(network, address string, _ syscall.RawConn) error {
		if !MayDial(network, address, allowLoopback) {
			return fmt.Errorf("%w: %s", ErrForbidden, address)
		}
		return nil
	}
}

// MayDial reports whether the server may connect to address (IP address and port) for an account.
func MayDial(network, address string, allowLoopback bool) bool {
	if network != "tcp4" && network != "tcp6" {
		return false
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil || ap.Addr().Zone() != "" {
		return false
	}
	ip := ap.Addr().Unmap()
	if allowLoopback && ip.IsLoopback() {
		return true
	}
	return ap.Port() == 443 && indigo.IsPublicIPAddress(ip.AsSlice()) && !isTransition(ip)
}

// isTransition reports whether util/ssrf takes ip for a public IPv6 address, although ip stands for
// an IPv4 address or for no address (IANA IPv6 special-purpose address registry).
func isTransition(ip netip.Addr) bool {
	return slices.ContainsFunc([]netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01}), 23),             // protocol assignments, Teredo
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8}), 32), // documentation
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x02}), 16),             // 6to4
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x3f, 0xff}), 20),             // documentation
	}, func(p netip.Prefix) bool { return p.Contains(ip) })
}
