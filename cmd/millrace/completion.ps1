# PowerShell completion for millrace. Load it with:  millrace generate completion powershell | Out-String | Invoke-Expression
Register-ArgumentCompleter -Native -CommandName millrace -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $words = @($commandAst.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursorPosition } | Select-Object -Skip 1 | ForEach-Object { $_.Extent.Text })
    $found = @(& $commandAst.CommandElements[0].Extent.Text __complete @words "$wordToComplete" 2>$null)
    if ($found.Count -gt 0 -and $found[0] -eq ':files') { return }
    $found | ForEach-Object { [System.Management.Automation.CompletionResult]::new($_, $_, 'ParameterValue', $_) }
}
