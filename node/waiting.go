package node

import (
	"net"
	"net/http"
	"net/netip"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"mlsd/internal/limit"
)

const (
	// maxWaiting bounds the connections that wait for a request. With 50,000 streams beside them, some
	// of the unit's 65,536 descriptors stay free. maxWaitingOfAddress is the bound for one address.
	maxWaiting, maxWaitingOfAddress = 8192, 1024
)

// waiting are the connections of a listener that wait for a request or for the rest of its header:
// new, half-open and idle connections. If there are too many of one address, or of all, the
// connection that has waited longest is closed. net/http has no such bound, and
// netutil.LimitListener would keep new connections out.
type waiting struct {
	most, maxOfAddress int
	proxies            []netip.Prefix // the bound of an address does not apply to them

	mu        sync.Mutex // guards what follows
	all       *simplelru.LRU[net.Conn, struct{}]
	byAddress map[netip.Prefix]*simplelru.LRU[net.Conn, struct{}]
}

func newWaiting(proxies []netip.Prefix) *waiting {
	return &waiting{most: maxWaiting, maxOfAddress: maxWaitingOfAddress, proxies: proxies, all: oldestFirst(),
		byAddress: map[netip.Prefix]*simplelru.LRU[net.Conn, struct{}]{}}
}

// oldestFirst returns a list of connections. The list never drops a connection by itself.
func oldestFirst() *simplelru.LRU[net.Conn, struct{}] {
	l, err := simplelru.NewLRU[net.Conn, struct{}](2*maxWaiting, nil)
	if err != nil {
		panic(err) // its size is a positive constant
	}
	return l
}

// changed is for http.Server.ConnState. A connection is active once the header of its request has
// come.
func (w *waiting) changed(c net.Conn, state http.ConnState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if state == http.StateNew || state == http.StateIdle {
		w.add(c)
	} else {
		w.remove(c)
	}
}

// add adds a connection, and closes others beyond the bounds. The caller holds mu.
func (w *waiting) add(c net.Conn) {
	address, proxy := w.address(c)
	of := w.byAddress[address]
	if of == nil {
		of = oldestFirst()
		w.byAddress[address] = of
	}
	w.all.Add(c, struct{}{})
	of.Add(c, struct{}{})
	if of.Len() > w.maxOfAddress && !proxy {
		w.closeOldest(of)
	}
	if w.all.Len() > w.most {
		w.closeOldest(w.all)
	}
}

// closeOldest closes the connection of a list that has waited longest. The caller holds mu.
func (w *waiting) closeOldest(of *simplelru.LRU[net.Conn, struct{}]) {
	if c, _, ok := of.GetOldest(); ok {
		w.remove(c)
		_ = c.Close() // its peer may have closed it
	}
}

// remove removes a connection, if it is there. The caller holds mu.
func (w *waiting) remove(c net.Conn) {
	if !w.all.Remove(c) {
		return
	}
	address, _ := w.address(c)
	if of := w.byAddress[address]; of.Remove(c) && of.Len() == 0 {
		delete(w.byAddress, address)
	}
}

// address returns the address at the other end, or its /64 if it is IPv6, and whether a proxy has
// this address.
func (w *waiting) address(c net.Conn) (address netip.Prefix, proxy bool) {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return address, false
	}
	ip := tcp.AddrPort().Addr().Unmap()
	proxy = limit.Within(ip, w.proxies)
	return netip.PrefixFrom(ip.WithZone(""), min(ip.BitLen(), 64)).Masked(), proxy
}
