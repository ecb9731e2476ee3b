{{- define "farandole.mebibytes" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+(e[+][0-9]+)?" $text -}}
{{- $units := dict "" 9.5367431640625e-07 "m" 9.5367431640625e-10 "k" 0.00095367431640625 "M" 0.95367431640625 "G" 953.67431640625 "T" 953674.31640625 "P" 953674316.40625 "E" 953674316406.25 "Ki" 0.0009765625 "Mi" 1.0 "Gi" 1024.0 "Ti" 1048576.0 "Pi" 1073741824.0 "Ei" 1099511627776.0 -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number $text)) -}}
{{- end -}}
{{- define "farandole.shm" -}}
{{- $half := int64 (floor (divf (float64 (include "farandole.mebibytes" ($.Values.memory | default (printf "%dGi" (mul (ternary 8 2 (gt (int $.Values.gpus) 0)) (int $.Values.nprocPerNode)))))) 2)) -}}
{{- $mib := min (mul 1024 (int $.Values.nprocPerNode)) $half -}}
{{- if mod $mib 1024 }}{{ $mib }}Mi{{ else }}{{ div $mib 1024 }}Gi{{ end -}}
{{- end -}}
{{- define "farandole.words" -}}
{{- range $at, $word := $.Values.command -}}
{{- if $at }} {{ end -}}
{{- if regexMatch "^[a-zA-Z0-9_@%+=:,./-]+$" $word -}}
{{- $word -}}
{{- else -}}
'{{ replace "'" `'"'"'` $word }}'
{{- end -}}
{{- end -}}
{{- end -}}
