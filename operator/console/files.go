package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
)

//go:embed assets
var assets embed.FS

// file is a file that pages use. Its path has its hash, so browsers keep it for ever.
type file struct {
	name, kind string
	content    []byte
}

// kinds are the Content-Types of the files.
var kinds = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml"}

// files returns the files by path.
func files() map[string]file {
	all := map[string]file{}
	names, err := fs.Glob(assets, "assets/*")
	if err != nil {
		panic(err) // the pattern is good
	}
	for _, name := range names {
		content, err := assets.ReadFile(name)
		if err != nil {
			panic(err) // it is built in
		}
		sum := sha256.Sum256(content)
		at := fmt.Sprintf("/assets/%s%s", hex.EncodeToString(sum[:8]), path.Ext(name))
		all[at] = file{path.Base(name), kinds[path.Ext(name)], content}
	}
	return all
}

// ServeHTTP implements http.Handler.
func (f file) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	setHeaders(w.Header())
	w.Header().Set("Content-Type", f.kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(f.content) // the browser asks again if it got only a part
}
