package console

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"mlsd/operator"
)

//go:embed views
var views embed.FS

// view is the data of the templates of all pages.
type view struct {
	*Request
	Page       page
	Pages      []page
	Files      map[string]string // the path of each file, by its name
	Version    string
	NeedsToken bool
	Bare       bool   // the page has no navigation
	Status     int    // HTTP status of the answer; 0 means 200
	Failure    string // why there is no Data
	Data       any
}

// plain are the pages that are not in the navigation.
var plain = []string{"login", "message", "confirm", "result"}

// parseViews reads the template of each page.
func parseViews(pages []page) (map[string]*template.Template, error) {
	layout, err := template.New("layout").Funcs(template.FuncMap{
		"number": number, "seconds": seconds, "sentence": sentence, "size": size, "share": share, "method": method,
		"short": short,
	}).ParseFS(views, "views/layout.html", "views/shared.html")
	if err != nil {
		return nil, err
	}
	names := plain
	for _, p := range pages {
		names = append(names, p.name)
	}
	all := map[string]*template.Template{}
	for _, name := range names {
		copied, err := layout.Clone()
		if err != nil {
			return nil, err
		}
		if all[name], err = copied.ParseFS(views, "views/"+name+".html"); err != nil {
			return nil, fmt.Errorf("the page %s: %w", name, err)
		}
	}
	return all, nil
}

// sentence turns an error's message into a sentence.
func sentence(message string) string {
	if message == "" {
		return ""
	}
	return strings.ToUpper(message[:1]) + strings.TrimSuffix(message[1:], ".") + "."
}

// number formats a whole number with separators: 12,345.
func number(n any) string {
	digits := fmt.Sprint(n)
	for at := len(digits) - 3; at > 0 && digits[at-1] != '-'; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// policy lets pages use only files of this listener. Inline scripts and inline styles are not
// allowed.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// setHeaders sets the headers of every page. It does not set the policy no-referrer: with it,
// browsers would send forms with "Origin: null", which Access refuses.
func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// serve returns the handler of a page.
func (c *Console) serve(p page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.load(w, r, p, c.request(r)) })
}

// load loads a page and writes it.
func (c *Console) load(w http.ResponseWriter, r *http.Request, p page, req *Request) {
	data, err := p.load(r.Context(), req)
	c.show(w, r, view{Request: req, Page: p, Data: data}, err)
}

// show writes a page. If err is not nil, the page says why it has no content.
func (c *Console) show(w http.ResponseWriter, r *http.Request, v view, err error) {
	status := cmp.Or(v.Status, http.StatusOK)
	if err != nil {
		refusal := c.explain(r.Context(), v.Page, err)
		status, v.Failure, v.Data = refusal.Status, sentence(refusal.Message), nil
	}
	v.Pages, v.Version, v.NeedsToken = c.pages(), c.Version, c.Access.NeedsToken()
	v.Files = map[string]string{}
	for path, f := range c.files {
		v.Files[f.name] = path
	}
	var out bytes.Buffer
	name := v.Page.name
	if v.Failure != "" {
		name = "message"
	}
	if err := c.templates[name].ExecuteTemplate(&out, "layout", v); err != nil {
		c.Log.ErrorContext(r.Context(), "a page of the console could not be made", "page", v.Page.Path, "error", err)
		http.Error(w, "The page could not be made: the server's log says why.", http.StatusInternalServerError)
		return
	}
	setHeaders(w.Header())
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	if _, err := out.WriteTo(w); err != nil {
		c.Log.Debug("a page could not be written", "error", err)
	}
}

// explain returns an error as the page shows it. The text of an error that is not ours goes only to
// the log.
func (c *Console) explain(ctx context.Context, p page, err error) *operator.Error {
	if refusal, known := operator.AsError(err); known {
		return refusal
	}
	c.Log.ErrorContext(ctx, "a page of the console could not be read", "page", p.Path, "error", err)
	return &operator.Error{Status: http.StatusInternalServerError, Name: "InternalServerError",
		Message: "The page could not be read: the server's log says why."}
}

//go:embed assets
var assets embed.FS

// file is a file that pages use. Its path contains its hash, so browsers may cache it for ever.
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
		panic(err) // the pattern is valid
	}
	for _, name := range names {
		content, err := assets.ReadFile(name)
		if err != nil {
			panic(err) // the file is embedded
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
	_, _ = w.Write(f.content) // a browser that got only a part asks again
}
