// Package redact says what must not leave the server, and who must not get it: DIDs in texts of
// logs, reports and pages, and the columns and answers that an export leaves out.
package redact

import "regexp"

// DIDs returns an expression that matches DIDs in texts and in URLs.
func DIDs() *regexp.Regexp {
	return regexp.MustCompile(`did(:|%3[aA])[a-z]+((:|%3[aA])([A-Za-z0-9._-]|%[0-9a-fA-F]{2})+)+`)
}
