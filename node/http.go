package node

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"
)

// HTTPServer returns a server for h. Package api sets deadlines of its own for bodies, large
// answers and streams. A connection of a proxy may carry the requests of many clients.
func HTTPServer(h http.Handler, proxies []netip.Prefix, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       60 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ConnState:         newWaiting(proxies).changed,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// closeQuietly closes a listener. Its server may have closed it before.
func closeQuietly(l net.Listener, log *slog.Logger) {
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		log.Warn("a listener could not be closed", "error", err)
	}
}

// extractor finds the client's address. It believes X-Forwarded-For from the proxies that the
// operator names, and from no others.
func extractor(cfg Config) echo.IPExtractor {
	if len(cfg.TrustedProxies) == 0 {
		return echo.ExtractIPDirect()
	}
	options := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, p := range cfg.TrustedProxies {
		options = append(options, echo.TrustIPRange(&net.IPNet{
			IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		}))
	}
	return echo.ExtractIPFromXFFHeader(options...)
}
