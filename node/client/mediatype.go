package client

import "strings"

func bareType(contentType string) string {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(t))
}

func isJSON(contentType string) bool {
	t := bareType(contentType)
	return t == "application/json" || len(t) > len("+json") && strings.HasSuffix(t, "+json")
}

func isText(contentType string) bool { return strings.HasPrefix(bareType(contentType), "text/") }
