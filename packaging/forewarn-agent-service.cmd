@echo off
rem The forewarn agent as a service of Windows. Run as an administrator:
rem     forewarn-agent-service.cmd install C:\path\to\python.exe C:\path\to\forewarn-agent.pyz
rem     forewarn-agent-service.cmd remove
rem First write %ProgramData%\forewarn\agent.toml (forewarn-agent init), and try it (forewarn-agent check).
setlocal
set CONFIG=%ProgramData%\forewarn\agent.toml
set FOLDER=%ProgramFiles%\forewarn
if "%~1"=="install" goto install
if "%~1"=="remove" goto remove
echo usage: %~nx0 install PYTHON.EXE FOREWARN-AGENT.PYZ, or %~nx0 remove
exit /b 2

:install
if not exist "%CONFIG%" (
    echo %CONFIG% is missing: write it first
    exit /b 1
)
if not exist "%~f2" echo "%~f2" is missing: give the whole path of python.exe& exit /b 1
rem An endpoint that does not answer yet (3) is no reason to stop here; a wrong configuration or step is.
"%~f2" "%~f3" check --config "%CONFIG%"
if errorlevel 1 if not errorlevel 3 exit /b 1
if not exist "%FOLDER%" mkdir "%FOLDER%"
rem Only administrators may write below %ProgramFiles%: what runs as the system must not be replaced by others.
copy /y "%~f3" "%FOLDER%\forewarn-agent.pyz" >NUL
if errorlevel 1 exit /b 1
sc.exe create forewarn-agent binPath= "\"%~f2\" \"%FOLDER%\forewarn-agent.pyz\" run --service --config \"%CONFIG%\"" start= auto
if errorlevel 1 exit /b 1
sc.exe description forewarn-agent "Prepares this machine for maintenance and brings it back"
rem Whatever goes wrong, and however often: Windows starts it again after five seconds.
sc.exe failure forewarn-agent reset= 0 actions= restart/5000/restart/5000/restart/5000
sc.exe start forewarn-agent
if errorlevel 1 exit /b 1
exit /b 0

:remove
sc.exe stop forewarn-agent
sc.exe delete forewarn-agent
if errorlevel 1 exit /b 1
exit /b 0
