// Package redact finds DIDs in texts, so that logs, reports and pages need not tell them.
package redact

import "regexp"

// DIDs matches DIDs in texts and in URLs.
func DIDs() *regexp.Regexp {
	return regexp.MustCompile(`did(:|%3[aA])[a-z]+((:|%3[aA])([A-Za-z0-9._-]|%[0-9a-fA-F]{2})+)+`)
}
